"""Writes the small data sets of this folder: invented problems in the columns and types of the real data sets.

    python tests/benchmarks/make.py

One file per benchmark and training set, in Parquet where types matter (lists, structs, nulls), else in JSONL.
"""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

HERE = Path(__file__).parent

AIME24 = [
    {
        "ID": "2024-III-1",
        "Problem": "A gardener plants $7$ rows of $12$ tulips. How many tulips are there?",
        "Solution": "$7\\cdot 12 = 84$.",
        "Answer": 84,
    },
    {
        "ID": "2024-III-2",
        "Problem": "Find the remainder when $5^{3}+2$ is divided by $100$.",
        "Solution": "$127$ leaves $27$.",
        "Answer": 27,
    },
    {
        "ID": "2024-III-3",
        "Problem": "Find the number of ordered pairs of digits $(a,b)$ with $a+b=4$.",
        "Solution": "$a$ may be $0,\\dots,4$.",
        "Answer": 5,
    },
]
AIME25_I = [
    {"question": "Find the sum of the positive divisors of $28$.", "answer": "56"},
    {"question": "An angle is $24^\\circ$ less than a full turn. Find it.", "answer": "336^\\circ"},
]
AIME25_II = [{"question": "A square of side $14$ is cut into four equal squares. Find their side.", "answer": "7"}]
AMC23 = [
    {"id": 0, "answer": 27.0, "url": "https://example.org/0", "question": "What is the cube of $3$?"},
    {"id": 1, "answer": -3.0, "url": "https://example.org/1", "question": "What is $4$ less than $1$?"},
    {"id": 2, "answer": 3.5, "url": "https://example.org/2", "question": "What is half of $7$?"},
]
HMMT25 = [
    {
        "problem_idx": 1,
        "problem": "Compute the area of a triangle with legs $\\sqrt{3}$ and $1$ at a right angle.",
        "answer": "\\frac{\\sqrt{3}}{2}",
        "problem_type": ["Geometry"],
    },
    {
        "problem_idx": 2,
        "problem": "Compute $2^{5}\\cdot 5^{2}$.",
        "answer": "800",
        "problem_type": ["Algebra", "Number Theory"],
    },
    {
        "problem_idx": 3,
        "problem": "Two coins are tossed. Compute the probability of one head.",
        "answer": "\\frac{1}{2}",
        "problem_type": ["Combinatorics"],
    },
]
GSM8K = [
    {"question": "Ann has 3 boxes of 4 pens. How many pens?", "answer": "Ann has 3*4=<<3*4=12>>12 pens.\n#### 12"},
    {"question": "A car costs 1000 more than 400. How much?", "answer": "400+1000=1400\n#### 1,400"},
    {"question": "It is 2 degrees and gets 5 colder. How warm is it?", "answer": "2-5=-3\n#### -3"},
]
MATH500 = [
    {
        "problem": "Give the polar coordinates of $(0,2)$.",
        "solution": "Up by two: $\\boxed{\\left( 2, \\frac{\\pi}{2} \\right)}$",
        "answer": "\\left( 2, \\frac{\\pi}{2} \\right)",
        "subject": "Precalculus",
        "level": 2,
        "unique_id": "test/precalculus/1.json",
    },
    {
        "problem": "Expand $(x+1)^2$.",
        "solution": "$\\boxed{x^2+2x+1}$",
        "answer": "x^2+2x+1",
        "subject": "Algebra",
        "level": 1,
        "unique_id": "test/algebra/2.json",
    },
    {
        "problem": "Which day comes after Monday?",
        "solution": "$\\boxed{\\text{Tuesday}}$",
        "answer": "\\text{Tuesday}",
        "subject": "Prealgebra",
        "level": 5,
        "unique_id": "test/prealgebra/3.json",
    },
]


def olympiad_row(number, question, final_answer, answer_type, several=False, context=None):
    return {
        "id": number,
        "question": question,
        "solution": ["A short proof."],
        "final_answer": final_answer,
        "context": context,
        "image_1": None,
        "modality": "Text-only",
        "difficulty": "Competition",
        "is_multiple_answer": several,
        "unit": None,
        "answer_type": answer_type,
        "error": None,
        "question_type": "Open-ended",
        "subfield": "Algebra",
        "subject": "Math",
        "language": "English",
    }


OLYMPIADBENCH = [
    olympiad_row(1601, "Determine the largest prime below $20$.", ["19"], "Numerical"),
    olympiad_row(1602, "Solve $x^2=4$.", ["2", "-2"], "Numerical", several=True),  # several answers: left out
    olympiad_row(1603, "Sum the first $n$ odd numbers.", ["$n^2$"], "Expression"),
    olympiad_row(1604, "Where do $y=x$ and $x=2$ meet?", ["$(2,2)$"], "Tuple", context="All lines lie in a plane."),
]
OLYMPIAD_SCHEMA = pa.schema(
    [
        (name, pa.string())
        for name in "question context image_1 modality difficulty unit answer_type error question_type subfield "
        "subject language".split()
    ]
    + [
        ("id", pa.int64()),
        ("solution", pa.list_(pa.string())),
        ("final_answer", pa.list_(pa.string())),
        ("is_multiple_answer", pa.bool_()),
    ]
)


def medqa_row(index, question, options, answer):
    padded = {letter: options[i] if i < len(options) else "" for i, letter in enumerate("ABCDEF")}
    return {
        "index": index,
        "source_index": index,
        "question": question,
        "options": padded,
        "answer": answer,
        "meta_info": "step1",
    }


VITAMINS = ["Vitamin A", "Vitamin B1", "Vitamin C", "Vitamin D", "Vitamin K"]
MEDQA = [
    medqa_row(0, "A sailor without fresh fruit has bleeding gums. What does he lack?", VITAMINS, "C"),
    medqa_row(1, "A newborn bleeds from the navel. Which shot was forgotten?", VITAMINS, "E"),
    medqa_row(2, "A drinker is confused and sees double. What is given first?", VITAMINS, "B"),
]
MEDQA_TRAIN = [
    medqa_row(0, "A child who is never in the sun has bowed legs. What does she lack?", VITAMINS, "D"),
    medqa_row(1, "A farmer cannot see at dusk. What does he lack?", VITAMINS, "A"),
    medqa_row(2, "A farmer cannot see at dusk.  What does he lack?", VITAMINS, "A"),  # repeated
]


def medmcqa_row(name, question, options, cop):
    return {
        "id": name,
        "question": question,
        **dict(zip(("opa", "opb", "opc", "opd"), options, strict=True)),
        "cop": cop,
        "choice_type": "single",
        "exp": None,
        "subject_name": "Anatomy",
        "topic_name": None,
    }


MEDMCQA = [
    medmcqa_row("val-1", "The longest bone is the", ["Femur", "Tibia", "Ulna", "Rib"], 0),
    medmcqa_row("val-2", "Blood group of the universal donor", ["A", "B", "AB", "O"], 3),
    medmcqa_row("val-3", "The heart has how many chambers", ["1", "2", "3", "4"], 3),
]
MEDMCQA_TRAIN = [
    medmcqa_row("train-1", "The stapes lies in the", ["Ear", "Knee", "Wrist", "Foot"], 0),
    medmcqa_row("train-2", "Bile is made by the", ["Spleen", "Liver", "Lung", "Skin"], 1),
    medmcqa_row("train-3", "The lens is part of the", ["Ear", "Knee", "Eye", "Foot"], 2),
    medmcqa_row("train-4", "No right answer is known here", ["a1", "b1", "c1", "d1"], -1),  # unreadable
]
MEDMCQA_SCHEMA = pa.schema(
    [("id", pa.string()), ("question", pa.string())]
    + [(name, pa.string()) for name in ("opa", "opb", "opc", "opd")]
    + [("cop", pa.int64())]
    + [(name, pa.string()) for name in ("choice_type", "exp", "subject_name", "topic_name")]
)


def pubmedqa_row(pubid, question, contexts, decision):
    return {
        "pubid": pubid,
        "question": question,
        "context": {
            "contexts": contexts,
            "labels": ["BACKGROUND", "RESULTS"],
            "meshes": ["Humans"],
            "reasoning_required_pred": ["y"],
            "reasoning_free_pred": ["y"],
        },
        "long_answer": "As found above.",
        "final_decision": decision,
    }


# The ids are of the official test set, but for one; the texts are not those papers'.
PUBMEDQA = [
    pubmedqa_row(7482275, "Does tea keep nurses awake?", ["Tea is drunk.", "All stayed awake."], "yes"),
    pubmedqa_row(1, "Not in the test set?", ["It is not.", "Indeed."], "no"),  # left out
    pubmedqa_row(7497757, "Do hats cure colds?", ["Hats were worn.", "Colds stayed."], "no"),
    pubmedqa_row(7547656, "Does music help sleep?", ["Music was played.", "Some slept."], "maybe"),
]
PUBMEDQA_SCHEMA = pa.schema(
    [
        ("pubid", pa.int32()),
        ("question", pa.string()),
        (
            "context",
            pa.struct(
                [
                    (name, pa.list_(pa.string()))
                    for name in ("contexts", "labels", "meshes", "reasoning_required_pred", "reasoning_free_pred")
                ]
            ),
        ),
        ("long_answer", pa.string()),
        ("final_decision", pa.string()),
    ]
)


def medxpertqa_row(number, question, options, label):
    lettered = dict(zip("ABCDEFGHIJ", options, strict=True))
    choices = " ".join(f"({letter}) {option}" for letter, option in lettered.items())
    return {
        "id": f"Text-{number}",
        "question": f"{question}\nAnswer Choices: {choices}",
        "options": lettered,
        "label": label,
        "medical_task": "Diagnosis",
        "body_system": "Skeletal",
        "question_type": "Reasoning",
    }


BONES = ["Femur", "Tibia", "Fibula", "Ulna", "Radius", "Humerus", "Talus", "Sacrum", "Clavicle", "Scapula"]
MEDXPERTQA = [
    medxpertqa_row(0, "A fall on the shoulder. Which bone in front breaks most often?", BONES, "I"),
    medxpertqa_row(1, "Which bone carries the leg on the foot?", BONES, "G"),
    medxpertqa_row(2, "Which is the thigh bone?", BONES, "A"),
]


def mmlu_pro_row(number, question, options, answer_index, category):
    return {
        "question_id": number,
        "question": question,
        "options": options,
        "answer": "ABCDEFGHIJ"[answer_index],
        "answer_index": answer_index,
        "cot_content": "",
        "category": category,
        "src": "made-up",
    }


MMLU_PRO = [
    mmlu_pro_row(70, "Where is a cell's DNA?", ["wall", "nucleus", "ribosome"], 1, "biology"),
    mmlu_pro_row(71, "What is due on a loan?", ["interest", "rent", "duty", "toll"], 0, "business"),  # left out
    mmlu_pro_row(6000, "What prevents scurvy?", [*BONES[:9], "vitamin C"], 9, "health"),
    mmlu_pro_row(6001, "What should be washed before a meal?", ["hands", "hats"], 0, "health"),
]
DEEPSCALER = [
    {"problem": "Find $6\\cdot 7$.", "answer": "42", "solution": "Multiply."},
    {"problem": "Simplify $\\frac{4}{6}$.", "answer": "\\frac{2}{3}", "solution": "Halve."},
    {"problem": "Find  $6\\cdot 7$.", "answer": "42", "solution": "Repeated."},  # repeated
    {"problem": "An answer is missing here.", "answer": "", "solution": ""},  # no answer
    {"problem": "Find the sum of the positive divisors of $28$", "answer": "56", "solution": ""},  # is in AIME25
    {"problem": "Count " + "very " * 1200 + "much.", "answer": "5", "solution": ""},  # too long
]


def jsonl(name, rows):
    path = HERE / f"{name}.jsonl"
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def parquet(name, rows, schema=None):
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), HERE / f"{name}.parquet")


if __name__ == "__main__":
    jsonl("aime24", AIME24)
    jsonl("aime25/aime2025-I", AIME25_I)
    jsonl("aime25/aime2025-II", AIME25_II)
    jsonl("amc23", AMC23)
    parquet("hmmt25", HMMT25)
    jsonl("gsm8k", GSM8K)
    jsonl("math500", MATH500)
    parquet("olympiadbench", OLYMPIADBENCH, OLYMPIAD_SCHEMA)
    parquet("medqa", MEDQA)
    parquet("medqa_train", MEDQA_TRAIN)
    parquet("medmcqa", MEDMCQA, MEDMCQA_SCHEMA)
    parquet("medmcqa_train", MEDMCQA_TRAIN, MEDMCQA_SCHEMA)
    parquet("pubmedqa", PUBMEDQA, PUBMEDQA_SCHEMA)
    jsonl("medxpertqa", MEDXPERTQA)
    parquet("mmlu_pro", MMLU_PRO)
    jsonl("deepscaler", DEEPSCALER)
