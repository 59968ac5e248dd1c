"""The README's settings table, from the settings themselves: `python -m tasks.settings_table` prints it."""

from pathlib import Path

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from tasks.setting_types import PROJECT_ROOT
from tasks.settings import Settings


def settings_rows() -> dict[str, tuple[str, str]]:
    """Variable -> (default, meaning) as the table has them, in the order of `Settings`."""
    return {
        str(field.validation_alias): (_shown(field), field.description or "")
        for field in Settings.model_fields.values()
    }


def settings_table() -> str:
    rows = [f"| `{name}` | {default} | {meaning} |" for name, (default, meaning) in settings_rows().items()]
    return "\n".join(["| variable | default | meaning |", "|---|---|---|", *rows])


def _shown(field: FieldInfo) -> str:
    if field.default_factory is not None:
        return "physical cores"  # the one default that depends on the machine
    value = field.default
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if isinstance(value, list):
        value = ",".join(value)
    if isinstance(value, Path):
        value = value.relative_to(PROJECT_ROOT)
    if isinstance(value, bool):
        value = str(value).lower()
    if isinstance(value, float):
        value = f"{value:g}"
    return f"`{value}`" if str(value) else "(empty)"


if __name__ == "__main__":
    print(settings_table())  # noqa: T201 - its purpose
