"""Why something runs in torch: a sentence for people, and beside it, as fields, what Kiln goes by."""

from __future__ import annotations

# Of kiln.Error.code_name: there is no daemon to ask, or no device.
UNAVAILABLE = "unavailable"
# What is of Kiln's service, and keeps all graphs from it alike.
CAUSES = ("deadline_exceeded", "permission_denied", "resource_exhausted", "failed_precondition", UNAVAILABLE)
# A program that is not there, where hits are required.
NOT_FOUND = "not_found"
DOCTOR = "see `kiln doctor`"


class Reason(str):
    """The sentence. Nobody looks for words in it.

    Attributes: code, op: kiln.Error's code_name and op, empty where it is of none; advice: what to do about it; is_semantic: torch
    does something of its own there, an error perhaps, that its decompositions need not do."""

    code = op = ""
    is_semantic = False
    advice = "nothing: torch runs it as without Kiln; kiln.explain() says more"

    def __new__(cls, text: str, **fields: str | bool) -> Reason:
        self = super().__new__(cls, text)
        self.__dict__.update(fields)
        return self

    @classmethod
    def of(cls, error: Exception) -> Reason:
        """What the error says: the very reason that it was raised with, or its text, with its `advice` if it has one."""
        if error.args and isinstance(error.args[0], Reason):
            return error.args[0]
        code, op = getattr(error, "code_name", ""), getattr(error, "op", "")
        advice = getattr(error, "advice", DOCTOR if code in CAUSES else cls.advice)
        return cls(str(error), code=code, op=op, advice=advice)

    @property
    def is_cause(self) -> bool:
        """Whether it keeps all graphs from Kiln alike, and not this one."""
        return self.code in CAUSES

    def within(self, context: str) -> Reason:
        """The same, with "context: " before the sentence."""
        return Reason(f"{context}: {self}", **vars(self))


class MissingProgram(BaseException):
    """A program is neither in the cache nor in a pack, and client.require_hit is on. What catches Exception, to go on in torch,
    lets this pass."""


class ExportError(Exception):
    """A model cannot be exported, with why."""


__all__ = ["CAUSES", "DOCTOR", "ExportError", "MissingProgram", "NOT_FOUND", "Reason", "UNAVAILABLE"]
