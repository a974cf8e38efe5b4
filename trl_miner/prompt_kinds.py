"""The kinds of prompt: how the rollouts of a prompt came out."""

import enum


class PromptKind(enum.StrEnum):
    """A kind of prompt by its short name in records, in the order of
    `methods.groups.GroupKinds`."""

    ALL_RIGHT = "PH"
    MIXED = "HE"
    ALL_WRONG = "NH"
    UNSCORABLE = "unscorable"

    @property
    def setting(self) -> str:
        """The kind in names of settings: all_right."""
        return self.name.lower()

    @property
    def words(self) -> str:
        """The kind in a sentence: all right."""
        return self.setting.replace("_", " ")
