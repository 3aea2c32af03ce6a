"""The table of families, for `conversion list` and the README."""

from conversion.families import FAMILIES


def markdown() -> str:
    """A row for each family: name, what it is, what `export` writes, what proves it."""
    rows = [
        "| `--family`, `--to` | reads | writes | can be told, where the file doesn't say | proven against |",
        "| --- | --- | --- | --- | --- |",
    ]
    for family in FAMILIES.values():
        written = f"`{family.suffix}`" if family.suffix else "a folder"
        layouts = f" ({', '.join(family.layouts)})" if len(family.layouts) > 1 else ""
        asked = ", ".join(f"`{name}`" for name in family.asked) or "nothing"
        rows.append(f"| `{family.name}` | {family.title} | {written}{layouts} | {asked} | {family.reference} |")
    return "\n".join(rows)
