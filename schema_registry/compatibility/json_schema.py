"""Does this JSON schema accept every document that the old one accepts?

Differences have the names that registries report them under: ``PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL``. An object
is *open* when it takes properties it does not name, *closed* when it takes none, *partially open* when it takes those
that fit a schema; lists with ``prefixItems`` likewise.

Not compared, because no difference has a name for it: ``patternProperties`` for themselves, ``propertyNames``,
``format``, another condition in ``if`` (its change is TYPE_CHANGED), ``$dynamicRef``. A property that becomes required
is reported when both schemas name it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, cast

from schema_registry.compatibility.json_keywords import (
    NUMERIC_LIMITS,
    Difference,
    all_dependencies,
    all_items,
    at,
    enums,
    equal,
    has_default,
    inner,
    items,
    limits,
    min_contains,
    multiple_of,
    notes,
    numeric_kind,
    numeric_limit,
    pattern,
    raw,
    required,
    rest_for,
    rest_of_items,
    schemas,
    set_change,
)
from schema_registry.compatibility.json_shapes import Json, Place, Shape, TooMuch, accepts_all, constraints, shape_of

MAX_COMPARED: Final = 50_000
MAX_DEPTH: Final = 80


def differences(new: Place, old: Place, compatible: frozenset[str]) -> list[Difference]:
    """Return the differences between two schemas. ``compatible`` names the kinds that break no reader."""
    return list(_Comparison(compatible).compare(old, new))


Found = tuple[Difference, ...]
Pair = tuple[int, int]
NOWHERE: Final = 1 << 30


class _Comparison:
    def __init__(self, compatible: frozenset[str]) -> None:
        self.compatible = compatible
        self.shapes: dict[int, Shape] = {}
        self.known: dict[Pair, Found] = {}
        self.open: dict[Pair, int] = {}
        self.outermost = NOWHERE
        """The outermost open pair that the present answer relies on."""
        self.compared = 0

    def fits(self, found: Iterable[Difference]) -> bool:
        return all(one.rule in self.compatible for one in found)

    def shape(self, place: Place) -> Shape:
        schema = place.schema
        if not isinstance(schema, dict):
            return shape_of(place)
        key = id(cast(object, schema))
        if key not in self.shapes:
            self.shapes[key] = shape_of(place)
        return self.shapes[key]

    def compare(self, old: Place | None, new: Place | None, path: str = "") -> Found:
        """Return differences, with ``path`` before each of their paths."""
        if old is None or new is None:
            if old is new:
                return ()
            return (Difference("SCHEMA_REMOVED" if new is None else "SCHEMA_ADDED", path, raw(old), raw(new)),)
        found = self._judged(self.shape(old), self.shape(new))
        return tuple(one._replace(path=path + one.path) for one in found) if path and found else found

    def _judged(self, old: Shape, new: Shape) -> Found:
        """Compare each pair once. A pair inside itself counts as compatible; results based on that are not cached."""
        pair = (id(old.place.schema), id(new.place.schema))
        if pair in self.known:
            return self.known[pair]
        if pair in self.open:
            self.outermost = min(self.outermost, self.open[pair])
            return ()
        self.compared += 1
        depth = len(self.open)
        if self.compared > MAX_COMPARED or depth >= MAX_DEPTH:
            raise TooMuch(
                f"the schemas are too large or too deep to be compared (at most {MAX_COMPARED:,} pairs of schemas, "
                f"{MAX_DEPTH} levels)"
            )
        self.open[pair] = depth
        before, self.outermost = self.outermost, NOWHERE
        found = tuple({(one.rule, one.path): one for one in self._different_kinds(old, new)}.values())
        if self.outermost >= depth:
            self.known[pair] = found
            self.outermost = before
        else:
            self.outermost = min(before, self.outermost)
        del self.open[pair]
        return found

    def _different_kinds(self, old: Shape, new: Shape) -> list[Difference]:
        if (found := self._one_is_combined(old, new)) is not None:
            return found
        if old.kind != new.kind and (old.kind == "never" or new.kind == "any"):
            return []
        if old.is_numeric and new.is_numeric:
            return [*numeric_kind(old, new), *notes(old, new), *self._same_kind(old, new)]
        if old.kind != new.kind:
            return [at(old, new, "TYPE_CHANGED")]
        return [*notes(old, new), *self._same_kind(old, new)]

    def _one_is_combined(self, old: Shape, new: Shape) -> list[Difference] | None:
        """Compare a single schema with a combination, by the branch of the combination that matches it, if one does."""
        if (old.kind == "combined") == (new.kind == "combined"):
            return None
        if new.kind == "combined":
            alternatives = [self.compare(old.place, branch) for branch in new.parts]
            rule = "SUM_TYPE_EXTENDED" if new.criterion != "allOf" else ""
            many = new
        else:
            alternatives = [self.compare(branch, new.place) for branch in old.parts]
            rule = "PRODUCT_TYPE_NARROWED" if old.criterion == "allOf" else ""
            many = old
        single = len(many.parts) == 1
        if not (single or rule):
            return None
        for found in alternatives:
            if self.fits(found):
                return [*found] if single else [*found, at(old, new, rule)]
        return None

    def _same_kind(self, old: Shape, new: Shape) -> Iterator[Difference]:
        match new.kind:
            case "object":
                yield from self._objects(old, new)
            case "array":
                yield from self._arrays(old, new)
            case "string":
                yield from limits(old, new, "maxLength", "minLength")
                yield from pattern(old, new)
            case "number" | "integer":
                yield from limits(old, new, *NUMERIC_LIMITS, value=numeric_limit)
                yield from multiple_of(old, new)
            case "enum":
                yield from enums(old, new)
            case "const" if not equal(old.get("const"), new.get("const")):
                yield at(old, new, "ENUM_ARRAY_CHANGED", "/const")
            case "not":
                yield from self._nots(old, new)
            case "if":
                yield from self._conditionals(old, new)
            case "combined":
                yield from self._combined(old, new)
            case _:
                pass

    def _conditionals(self, old: Shape, new: Shape) -> Iterator[Difference]:
        """The same condition with other consequences; another condition is a change, because nothing compares it."""
        if not _same(old, new, "if"):
            yield at(old, new, "TYPE_CHANGED", "/if")
            return
        for name in ("then", "else"):
            before, after = (True if one is None else one for one in (old.get(name), new.get(name)))
            yield from self.compare(old.place.inner(before), new.place.inner(after), f"/{name}")

    def _nots(self, old: Shape, new: Shape) -> Iterator[Difference]:
        if _same(old, new, "not"):
            return
        narrowed = self.fits(self.compare(new.place.inner(new.get("not")), old.place.inner(old.get("not"))))
        yield at(old, new, "NOT_TYPE_NARROWED" if narrowed else "NOT_TYPE_EXTENDED", "/not")

    def _combined(self, old: Shape, new: Shape) -> Iterator[Difference]:
        if old.criterion != new.criterion:
            if not _is_wider(old, new):
                yield at(old, new, "COMBINED_TYPE_CHANGED")
                return
            yield at(old, new, "COMBINED_TYPE_EXTENDED")
        if len(new.parts) > len(old.parts):
            yield at(old, new, "PRODUCT_TYPE_EXTENDED" if new.criterion == "allOf" else "SUM_TYPE_EXTENDED")
        elif len(new.parts) < len(old.parts):
            yield at(old, new, "PRODUCT_TYPE_NARROWED" if old.criterion == "allOf" else "SUM_TYPE_NARROWED")
        table = [[self.compare(before, after) for after in new.parts] for before in old.parts]
        matching = _matching([[self.fits(found) for found in row] for row in table])
        if len(matching) < min(len(old.parts), len(new.parts)):
            lost = [self.shape(part).kind for row, part in enumerate(old.parts) if row not in matching]
            step = "/if" if new.synthetic and lost == ["if"] else ""
            yield at(old, new, "COMBINED_TYPE_SUBSCHEMAS_CHANGED", step)
            return
        for row, column in matching.items():
            step = "" if new.synthetic else f"/{new.criterion}/{row}"  # its place in the old combination
            yield from (one._replace(path=step + one.path) for one in table[row][column])

    # Objects

    def _objects(self, old: Shape, new: Shape) -> Iterator[Difference]:
        before, after = schemas(old, "properties"), schemas(new, "properties")
        for name in before:
            if name not in after:
                yield from self._property_removed(old, new, name, before[name])
        for name in after:
            if name not in before:
                yield from self._property_added(old, new, name, after[name])
            else:
                step = f"/properties/{name}"
                yield from self.compare(old.place.inner(before[name]), new.place.inner(after[name]), step)
        yield from required(old, new, [name for name in after if name in before])
        yield from self._dependencies(old, new)
        yield from self._rest(old, new, "additionalProperties", "ADDITIONAL_PROPERTIES")
        yield from self._rest(old, new, "unevaluatedProperties", "UNEVALUATED_PROPERTIES")
        yield from limits(old, new, "maxProperties", "minProperties")

    def _property_removed(self, old: Shape, new: Shape, name: str, schema: Json) -> Iterator[Difference]:
        cover = rest_for(new, name)
        step = f"/properties/{name}"
        if cover is True:
            yield at(old, new, "PROPERTY_REMOVED_FROM_OPEN_CONTENT_MODEL", step)
        elif cover is False:
            kind = "PROPERTY_WITH_FALSE_REMOVED" if schema is False else "PROPERTY_REMOVED"
            yield at(old, new, f"{kind}_FROM_CLOSED_CONTENT_MODEL", step)
        else:
            found = self.compare(old.place.inner(schema), new.place.inner(cover), step)
            yield from found
            covered = "IS" if self.fits(found) else "NOT"
            yield at(old, new, f"PROPERTY_REMOVED_{covered}_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL", step)

    def _property_added(self, old: Shape, new: Shape, name: str, schema: Json) -> Iterator[Difference]:
        cover = rest_for(old, name)
        step = f"/properties/{name}"
        place = new.place.inner(schema)
        required = name in (new.get("required") or ())
        if cover is True and self.shape(place).kind == "any" and not required:
            yield at(old, new, "PROPERTY_WITH_EMPTY_SCHEMA_ADDED_TO_OPEN_CONTENT_MODEL", step)
            return
        if not isinstance(cover, bool):
            found = self.compare(old.place.inner(cover), place, step)
            yield from found
            covered = "IS" if self.fits(found) else "NOT"
            yield at(old, new, f"PROPERTY_ADDED_{covered}_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL", step)
        defaulted = "_WITH_DEFAULT" if has_default(schema) else ""
        kind = f"REQUIRED_PROPERTY{defaulted}" if required else "OPTIONAL_PROPERTY"
        yield at(old, new, f"{kind}_ADDED_TO_{'OPEN' if cover is True else 'UNOPEN'}_CONTENT_MODEL", step)

    def _rest(self, old: Shape, new: Shape, keyword: str, rule: str) -> Iterator[Difference]:
        yield from self._beside(old, new, (old.get(keyword), new.get(keyword)), f"/{keyword}", rule)

    def _beside(self, old: Shape, new: Shape, taken: tuple[Json, Json], step: str, rule: str) -> Iterator[Difference]:
        """Yield the additional members that are accepted: all, none, or those that match a schema."""
        before, after = (True if one is None or accepts_all(one) else one for one in taken)
        if equal(before, after):
            return
        if before is False:
            yield at(old, new, f"{rule}_ADDED", step)
        elif after is False:
            yield at(old, new, f"{rule}_REMOVED", step)
        elif before is True:
            yield at(old, new, f"{rule}_NARROWED", step)
        elif after is True:
            yield at(old, new, f"{rule}_EXTENDED", step)
        else:
            yield from self.compare(old.place.inner(before), new.place.inner(after), step)

    def _dependencies(self, old: Shape, new: Shape) -> Iterator[Difference]:
        before, after = all_dependencies(old), all_dependencies(new)
        for name in [*before, *(name for name in after if name not in before)]:
            step = f"/dependencies/{name}"
            was, now = before.get(name), after.get(name)
            kind = "ARRAY" if isinstance(was if was is not None else now, list) else "SCHEMA"
            if was is None:
                yield at(old, new, f"DEPENDENCY_{kind}_ADDED", step)
            elif now is None:
                yield at(old, new, f"DEPENDENCY_{kind}_REMOVED", step)
            elif isinstance(was, list) and isinstance(now, list):
                change = set_change(cast("list[Json]", was), cast("list[Json]", now))
                if change:
                    yield at(old, new, f"DEPENDENCY_ARRAY_{change}", step)
            elif isinstance(was, list) or isinstance(now, list):
                yield at(old, new, "DEPENDENCY_SCHEMA_ADDED" if kind == "ARRAY" else "DEPENDENCY_ARRAY_ADDED", step)
            else:
                yield from self.compare(old.place.inner(was), new.place.inner(now), step)

    # Lists

    def _arrays(self, old: Shape, new: Shape) -> Iterator[Difference]:
        before, before_rest = items(old)
        after, after_rest = items(new)
        if before is None and after is None:
            yield from self.compare(all_items(old, before_rest), all_items(new, after_rest), "/items")
        else:
            yield from self._tuples(old, new, before or [], after or [])
            yield from self._beside(old, new, (before_rest, after_rest), "/additionalItems", "ADDITIONAL_ITEMS")
        yield from self._rest(old, new, "unevaluatedItems", "UNEVALUATED_ITEMS")
        yield from self.compare(inner(old, "contains"), inner(new, "contains"), "/contains")
        yield from limits(old, new, "maxItems", "minItems", "maxContains")
        yield from limits(old, new, "minContains", value=min_contains)
        if bool(old.get("uniqueItems")) != bool(new.get("uniqueItems")):
            rule = "UNIQUE_ITEMS_ADDED" if new.get("uniqueItems") else "UNIQUE_ITEMS_REMOVED"
            yield at(old, new, rule, "/uniqueItems")

    def _tuples(self, old: Shape, new: Shape, before: list[Json], after: list[Json]) -> Iterator[Difference]:
        for index in range(max(len(before), len(after))):
            step = f"/items/{index}"
            if index < len(before) and index < len(after):
                yield from self.compare(old.place.inner(before[index]), new.place.inner(after[index]), step)
            elif index < len(before):
                yield from self._item_removed(old, new, before[index], step)
            else:
                yield from self._item_added(old, new, after[index], step)

    def _item_removed(self, old: Shape, new: Shape, schema: Json, step: str) -> Iterator[Difference]:
        cover = rest_of_items(new)
        if cover is True:
            yield at(old, new, "ITEM_REMOVED_FROM_OPEN_CONTENT_MODEL", step)
        elif cover is False:
            kind = "ITEM_WITH_FALSE_REMOVED" if schema is False else "ITEM_REMOVED"
            yield at(old, new, f"{kind}_FROM_CLOSED_CONTENT_MODEL", step)
        else:
            found = self.compare(old.place.inner(schema), new.place.inner(cover), step)
            yield from found
            covered = "IS" if self.fits(found) else "NOT"
            yield at(old, new, f"ITEM_REMOVED_{covered}_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL", step)

    def _item_added(self, old: Shape, new: Shape, schema: Json, step: str) -> Iterator[Difference]:
        cover = rest_of_items(old)
        place = new.place.inner(schema)
        if cover is True:
            kind = "ITEM_WITH_EMPTY_SCHEMA" if self.shape(place).kind == "any" else "ITEM"
            yield at(old, new, f"{kind}_ADDED_TO_OPEN_CONTENT_MODEL", step)
        elif cover is False:
            yield at(old, new, "ITEM_ADDED_TO_CLOSED_CONTENT_MODEL", step)
        else:
            found = self.compare(old.place.inner(cover), place, step)
            yield from found
            covered = "IS" if self.fits(found) else "NOT"
            yield at(old, new, f"ITEM_ADDED_{covered}_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL", step)


def _same(old: Shape, new: Shape, keyword: str) -> bool:
    """True if the schemas of a keyword differ in annotations alone, and so do those that they refer to."""
    before, after = (constraints(one.get(keyword), one.place.targets) for one in (old, new))
    return before == after


def _is_wider(old: Shape, new: Shape) -> bool:
    """A combination of another kind takes all that the old one took."""
    if new.criterion == "anyOf":
        return True
    if old.criterion == "allOf":
        return True
    return len(old.parts) == 1 and (new.criterion == "oneOf" or len(new.parts) == 1)


def _matching(fits: list[list[bool]]) -> dict[int, int]:
    """Match as many rows as possible to distinct columns (augmenting paths)."""
    row_of: dict[int, int] = {}

    def place(row: int, seen: set[int]) -> bool:
        for column, fit in enumerate(fits[row]):
            if fit and column not in seen:
                seen.add(column)
                if column not in row_of or place(row_of[column], seen):
                    row_of[column] = row
                    return True
        return False

    for row in range(len(fits)):
        place(row, set())
    return {row: column for column, row in sorted(row_of.items(), key=lambda item: item[1])}
