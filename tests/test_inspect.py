"""`trl-miner inspect`: the records as they are read, and the page in a real browser."""

import base64
import contextlib
import json
import math
import re
import zlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from browser import needs_browser, open_page
from credit_files import SCHEMA, rollout, small_batch, write_credit

from trl_miner import cli
from trl_miner.viewing.credit import credited_tokens, read_credit
from trl_miner.viewing.inspect import choose_prompts, write_inspect_page

EVIL = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>"


@pytest.fixture
def run(tmp_path):
    """Steps 10 and 20, each with a PH, an HE and an NH prompt of two rollouts."""
    folder = tmp_path / "a run"
    for step in (10, 20):
        write_credit(folder, small_batch(step), step=step)
    return folder


@contextlib.contextmanager
def page_of(run, **options):
    """The page of a run, once it has drawn its first prompt; it must stay without errors and
    requests."""
    with open_page(write_inspect_page(read_credit(run), run / "inspect.html"), **options) as page:
        page.evaluate("() => ready")
        yield page
        page.assert_quiet()


ROLLOUT = """async ([step, group, index]) => {
    const rollouts = await rolloutsOf(prompts.find((one) => one.step === step && one.group === group));
    const found = rollouts.find((one) => one.rollout === index);
    const lists = ["old_logps", "weights", "advantages_before", "advantages"].map(
        (name) => [name, found.texts.map((_, place) => number(found[name]?.[place]))]);
    return { tokens: textsOf(found), ...Object.fromEntries(lists) };
}"""


def assert_exact(found, expected):
    """Bit for bit float32; null is null and NaN is NaN."""
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        if other is not None:
            np.testing.assert_array_equal(np.float32(one), np.float32(other))


def list_of(page):
    return page.locator(".item .numbers:first-child").all_text_contents()


# The files


def test_credit_is_summed_over_all_files(tmp_path):
    # weights (1 - .5)^2 = .25 and 0; times 2: "So" .5 and 0 in each of two steps, "7" .5 in each
    for step in (1, 2):
        rows = [
            rollout(
                "PH", ["So", "7", "So"], [math.log(0.5), math.log(0.5), 0.0], mined=2.0, step=step
            )
        ]
        rows += [rollout("HE", ["So"], [-1.0], grpo=-3.0, step=step, group=1)]
        write_credit(tmp_path, rows, step=step, num_generations=1)
    credit = read_credit(tmp_path)
    found = credited_tokens(credit).set_index("token").T.to_dict("list")
    assert found == {
        "So": pytest.approx([4, 1.0, 0.5, 0.25]),
        "7": pytest.approx([2, 1.0, 0.5, 0.5]),
    }
    assert credited_tokens(credit, "HE")["credit"].tolist() == [6.0]  # |-3| twice
    assert credited_tokens(credit, "NH").empty
    with pytest.raises(ValueError, match="kind must be one of PH, HE, NH, unscorable: got 'ph'"):
        credited_tokens(credit, "ph")


def test_a_damaged_file_is_named(run):
    path = run / "credit" / "credit_00020.parquet"
    whole, column = path.read_bytes(), pq.ParquetFile(path).metadata.row_group(0).column(16)
    place = column.dictionary_page_offset + column.total_compressed_size - 1
    flipped = bytes([whole[place] ^ 1])  # a bit of the numbers
    for damaged in (whole[:-100], b"PAR1", whole[:place] + flipped + whole[place + 1 :]):
        path.write_bytes(damaged)
        with pytest.raises(
            ValueError, match="credit_00020.parquet must be a whole token record: .*Move it"
        ):
            read_credit(run)


def test_a_page_takes_whole_prompts_up_to_its_limit(monkeypatch):
    """24 prompts of two tokens in rollouts and three in text."""
    rows = [
        rollout("HE", ["a"], [-1], step=step, group=group, index=index)
        for step in range(4)
        for group in range(6)
        for index in range(2)
    ]
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    assert len(choose_prompts(table)) == 48
    assert {*table.take(choose_prompts(table, [2, 1]))["step"].to_pylist()} == {1, 2}
    with pytest.raises(
        ValueError, match="--steps must name recorded steps: got 9, and there are 0, 1, 2, 3"
    ):
        choose_prompts(table, [9, 1])
    assert not len(choose_prompts(table.slice(0, 0)))
    for limit, count in ((34, 6), (120, 24), (1, 1)):  # one prompt at least
        monkeypatch.setattr("trl_miner.viewing.inspect.MOST_TOKENS", limit)
        places = [
            (row["step"], row["group"]) for row in table.take(choose_prompts(table)).to_pylist()
        ]
        assert len(places) == 2 * count and places[::2] == places[1::2] == sorted({*places})
        assert len({step for step, _ in places}) == 4 or count < 24


def notes_of(path):
    """Return the notes of a page, unpacked."""
    head = re.search(r'id="head">([^<]*)<', path.read_text()).group(1)
    return json.loads(zlib.decompress(base64.b64decode(head)))["notes"]


def test_the_command_says_what_it_wrote_and_a_page_what_it_leaves_out(run, capsys):
    path = run / "inspect.html"
    assert cli.main(["inspect", str(run)]) == 0 and notes_of(path) == []
    out = capsys.readouterr().out
    assert str(path) in out and f"trl-miner report '{run}'" in out
    assert cli.main(["inspect", str(run), "--steps", "20"]) == 0
    assert notes_of(path)[0].startswith(
        "6 of 12 recorded rollouts are shown: at most 1,500,000 tokens"
    )
    for words, error in (
        ([str(run), "--steps", "11"], "--steps must name recorded steps"),
        ([str(run / "nowhere")], "Run folder not found: "),
    ):
        assert cli.main(["inspect", *words]) == 2 and error in capsys.readouterr().err


# The page


@needs_browser
@pytest.mark.parametrize(("scheme", "width"), [("light", 400), ("dark", 1280)])
def test_the_page_opens_without_an_error_or_a_request(run, tmp_path, scheme, width):
    with page_of(run, color_scheme=scheme, viewport={"width": width, "height": 800}) as page:
        assert page.inner_text("h1") == "a run"
        assert "· 2 steps, 10 to 20 · 12 rollouts of 6 prompts" in page.inner_text("#facts")
        # nothing but the rollouts scrolls
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.hover(".t >> nth=3")
        page.screenshot_as(f"inspect_{scheme}.png", tmp_path)


@needs_browser
def test_the_numbers_of_a_token_show_by_pointer_and_by_keyboard(run):
    row = read_credit(run).table.to_pylist()[0]
    logp, *rest = (
        row[name][2] for name in ("old_logps", "weights", "advantages_before", "advantages")
    )
    expected = ["␣check", "3 of 7", *(f"{number:.4g}" for number in (logp, math.exp(logp), *rest))]
    with page_of(run) as page:
        tip = page.locator("#tip")

        def shown():
            return [
                line.split("\t")[-1].replace("\N{MINUS SIGN}", "-")
                for line in tip.inner_text().splitlines()
                if line
            ]

        page.hover(".t >> nth=2")
        assert shown() == expected
        page.hover("h1")
        assert tip.is_hidden()
        page.locator(".t").first.focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        assert shown() == expected


@needs_browser
def test_filters_and_search_narrow_the_list(run):
    with page_of(run) as page:
        everything = [
            f"{kind}step {s}, prompt {g}"
            for s in (10, 20)
            for g, kind in enumerate(("All right", "Mixed", "All wrong"))
        ]
        assert list_of(page) == everything and page.inner_text("#count") == "6 of 6 prompts"
        page.click("#kinds >> text=All right")
        page.click("#kinds >> text=Mixed")
        assert list_of(page) == [one for one in everything if one.startswith("All wrong")]
        page.click("#kinds >> text=All right")
        page.click("#kinds >> text=Mixed")
        page.select_option("#step", "20")
        assert list_of(page) == everything[3:]
        page.select_option("#step", "")
        page.fill("#search", "GIVE UP")  # in a completion of the NH prompts
        page.wait_until("document.getElementById('count').textContent === '2 of 6 prompts'")
        assert list_of(page) == [everything[2], everything[5]]
        page.fill("#search", "what is 1 + 1")  # in the prompt of both HE
        page.wait_until("document.querySelector('.item .badge').textContent === 'Mixed'")
        page.fill("#search", "")
        page.wait_until("document.getElementById('count').textContent === '6 of 6 prompts'")


TURNS = [
    (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nThe"
        " question?<|im_end|>\n<|im_start|>assistant\n"
    ),
    "<|start_header_id|>user<|end_header_id|>\n\nThe question?<|eot_id|>",
    "User: The question?\n\nAssistant:",
    "The question?",
]


@needs_browser
def test_the_list_shows_the_users_turn_and_the_best_rollout_comes_first(tmp_path):
    rows = [
        rollout(
            "HE", ["a"], [-1], group=group, index=at, grpo=advantage, prompt=prompt, reward=reward
        )
        for group, prompt in enumerate(TURNS)
        for at, (reward, advantage) in enumerate([(0.0, -1.0), (None, 0.0), (1.0, 0.5), (1.0, 2.0)])
    ]
    write_credit(tmp_path, rows)
    with page_of(tmp_path) as page:
        assert page.locator(".item .words").all_inner_texts() == ["The question?"] * 4
        assert page.locator(".card h3").all_inner_texts() == [
            f"Completion {at}" for at in (3, 2, 0, 1)
        ]


@needs_browser
def test_text_from_a_model_is_shown_and_never_runs(tmp_path):
    folder = tmp_path / "run <img src=x onerror=hacked=3>"
    hidden = "a\x00b\x1b[31m\u202eevil\u200b\u2066\x9b\x7f\r\n"
    row = rollout(
        "PH",
        [EVIL, hidden, "", "&lt;b&gt;"],
        [-1] * 4,
        mined=1.0,
        prompt=EVIL + hidden,
        completion="other" + EVIL,
    )
    write_credit(folder, [row], num_generations=1)
    (folder / "training.json").write_text(json.dumps({"methods": [EVIL]}))
    page = write_inspect_page(read_credit(folder), folder / "inspect.html")
    assert "window.hacked" not in page.read_text(encoding="utf-8")
    with page_of(folder) as page:
        assert page.inner_text("h1") == folder.name and "onerror" in page.title()
        shown = "a␀b␛[31m⟨U+202E⟩evil⟨U+200B⟩⟨U+2066⟩⟨U+009B⟩␡␍↵"
        assert page.inner_text("#prompt-text").rstrip("\n") == EVIL + shown
        texts = page.locator(".t").all_inner_texts()
        assert [text.rstrip("\n") for text in texts] == [EVIL, shown, "▯", "&lt;b&gt;"]
        page.hover(".t >> nth=0", position={"x": 3, "y": 3})
        assert page.inner_text("#tip b").startswith("</script>")
        assert page.evaluate("typeof hacked") == "undefined"
        assert page.locator("img").count() == 0 and page.locator("main script").count() == 0


@needs_browser
def test_numbers_in_the_page_are_those_of_the_file(run, tmp_path):
    """NaN, infinities, null, the largest and the smallest float32 too, in step 30."""
    odd = [math.nan, math.inf, -math.inf, 3.4e38, -1e-45, 0.0, 1.0, -0.0, None]
    weird = np.random.default_rng(0).standard_normal(9).astype(np.float32).tolist()
    tokens, at = list("abcdefghi"), {"step": 30}
    numbers_of = [
        {"old_logps": odd, "advantages": odd, "advantages_before": weird, "weights": weird},
        {"weights": odd, "advantages": weird, "advantages_before": odd},
    ]
    rows = [
        rollout("PH", tokens, [-1] * 9, index=index, **own, **at)
        for index, own in enumerate(numbers_of)
    ]
    rows += [
        rollout(
            "unscorable", ["x"], [-1], group=1, reward=None, nll=math.nan, old_logps=[None], **at
        )
    ]
    write_credit(run, rows, step=30)
    with page_of(run) as page:
        assert "Unscorable 1" in page.inner_text("#kinds")
        for row in read_credit(run).table.to_pylist():
            found = page.evaluate(ROLLOUT, [row["step"], row["group"], row["rollout"]])
            assert found["tokens"] == row["tokens"]
            for name in ("old_logps", "weights", "advantages_before", "advantages"):
                assert_exact(
                    found[name], [None] * len(row["tokens"]) if row[name] is None else row[name]
                )


@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_deeper_color_is_a_larger_advantage(tmp_path, scheme):
    """Distance of the background from the page's own, token by token."""
    advantages = [0.0, 0.1, 0.4, 1.6, -0.05, -0.2, -1.6]
    write_credit(
        tmp_path,
        [rollout("HE", list("abcdefg"), [-1] * 7, advantages=advantages)],
        num_generations=1,
    )
    with page_of(tmp_path, color_scheme=scheme) as page:
        style = (
            "spans => spans.map(s => getComputedStyle(s)).map(s => [s.backgroundColor,"
            " s.textDecorationLine])"
        )
        styles = page.eval_on_selector_all(".t", style)
        own = {"light": (255, 255, 255), "dark": (21, 24, 27)}[scheme]
        colors = [[*map(float, color[color.index("(") + 1 : -1].split(","))] for color, _ in styles]
        depths = [sum(abs(a - b) for a, b in zip(color[:3], own, strict=True)) for color in colors]
        assert depths[1:4] == sorted({*depths[1:4]}) and depths[4:] == sorted({*depths[4:]})
        assert [line == "underline" for _, line in styles] == [one < 0 for one in advantages]


@needs_browser
@pytest.mark.parametrize("is_empty", [True, False])
def test_unusual_records_make_a_page(tmp_path, is_empty):
    """No tokens; a long text, huge and NaN; and a rollout of several blocks."""
    rows = [
        rollout("NH", [], [], nll=None),
        rollout("PH", ["x" * 10_000, ""], [-1, math.nan], mined=3e38, group=1),
    ]
    rows += [rollout("HE", ["one", " line\n"] * 1600, [-1.0] * 3200, grpo=1.0, group=2)]
    rows = [] if is_empty else rows
    write_credit(tmp_path, rows, num_generations=1)
    with page_of(tmp_path) as page:
        assert page.locator(".item").count() == len(rows)
        for place, row in enumerate(rows):
            page.click(f".item >> nth={place}")
            texts = [text.replace("\n", "↵\n") or "▯" for text in row["tokens"]]
            page.wait_until(f"document.querySelectorAll('.t').length === {len(texts)}")
            assert page.locator(".t").all_text_contents() == texts
        if rows:  # the keyboard goes from one block to the next
            blocks = page.locator(".lines")
            size = blocks.nth(0).locator(".t").count()
            assert blocks.count() > 1
            blocks.nth(0).locator(".t").last.focus()
            page.keyboard.press("ArrowRight")
            assert (
                page.inner_text("#tip").replace("\t", " ").count(f"token {size + 1} of 3200") == 1
            )
