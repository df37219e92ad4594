"""Draw the counts of Spark's stream: delays by the hour of the day, and over the year."""

# matplotlib's types are partly unknown.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import importlib.util
import math
from datetime import date
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from eventbus.demo.flights import Departures, Hours

AIRPORTS = {"EWR": "Newark", "JFK": "Kennedy", "LGA": "LaGuardia"}
_COLORS = {"EWR": "#0072b2", "JFK": "#d55e00", "LGA": "#009e73"}  # distinguishable by the colour-blind, too
_ZONE = ZoneInfo("America/New_York")
_FIRST, _LAST = 5, 23
"""The hours in which flights leave New York: a single flight at 1 in the whole year was cancelled."""
_YEAR = date(2013, 1, 1)
_DAYS = 365
_WORST_MINUTES = 90
"""The end of the colour scale."""


def by_hour_of_day(hours: Hours) -> dict[str, dict[int, Departures]]:
    """Sum by airport and hour on New York's clocks."""
    result: dict[str, dict[int, Departures]] = {}
    for (airport, hour), entry in sorted(hours.items()):
        _add(result.setdefault(airport, {}).setdefault(hour.astimezone(_ZONE).hour, Departures()), entry)
    return result


def _by_day(hours: Hours) -> dict[tuple[int, int], Departures]:
    """Sum by day of the year and hour on New York's clocks."""
    result: dict[tuple[int, int], Departures] = {}
    for (_, hour), entry in hours.items():
        local = hour.astimezone(_ZONE)
        _add(result.setdefault(((local.date() - _YEAR).days, local.hour), Departures()), entry)
    return result


def _add(total: Departures, entry: Departures) -> None:
    total.flights += entry.flights
    total.departed += entry.departed
    total.delay_minutes += entry.delay_minutes


def draw(hours: Hours, path: Path) -> bool:
    """Save the picture; return False if matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        return False
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 8), layout="constrained")
    flights, departed = (sum(getattr(each, name) for each in hours.values()) for name in ("flights", "departed"))
    figure.suptitle(f"Departures from New York City in 2013: {departed:,} of {flights:,} flights left", fontsize=15)
    upper, lower = figure.subplots(2, 1, height_ratios=[1, 1.15])
    _draw_day(upper, hours)
    _draw_year(figure, lower, hours)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    return True


def _draw_day(axes: Any, hours: Hours) -> None:
    for airport, entries in by_hour_of_day(hours).items():
        means = [entries[hour].mean_delay if hour in entries else None for hour in range(_FIRST, _LAST + 1)]
        label = f"{airport}, {AIRPORTS.get(airport, '')}"
        points = [math.nan if mean is None else mean for mean in means]
        axes.plot(range(_FIRST, _LAST + 1), points, marker="o", color=_COLORS.get(airport), label=label)
    axes.axhline(0, color="grey", linewidth=0.8)
    axes.set_title("Delays grow through the day", loc="left")
    axes.set_xlabel("scheduled hour of departure (New York time)")
    axes.set_ylabel("mean departure delay (minutes)")
    axes.set_xticks(range(_FIRST, _LAST + 1))
    axes.grid(alpha=0.3)
    axes.legend(title="airport", loc="upper left")
    axes.spines[["top", "right"]].set_visible(False)


def _draw_year(figure: Any, axes: Any, hours: Hours) -> None:
    cells = [[math.nan] * _DAYS for _ in range(_FIRST, _LAST + 1)]
    for (day, hour), entry in _by_day(hours).items():
        mean = entry.mean_delay
        if _FIRST <= hour <= _LAST and mean is not None:
            cells[hour - _FIRST][day] = mean
    extent = (-0.5, _DAYS - 0.5, _FIRST - 0.5, _LAST + 0.5)
    image = axes.imshow(cells, aspect="auto", origin="lower", extent=extent, cmap="YlOrRd", vmin=0, vmax=_WORST_MINUTES)
    months = [(date(2013, month, 1) - _YEAR).days for month in range(1, 13)]
    axes.set_xticks(months, [date(2013, month, 1).strftime("%b") for month in range(1, 13)], ha="left")
    axes.set_yticks(range(6, _LAST + 1, 3))
    axes.set_title(
        "Every hour of the year: storms in summer, snow on 8 February and 8 March (white: nothing left)", loc="left"
    )
    axes.set_xlabel("day of 2013")
    axes.set_ylabel("scheduled hour (New York time)")
    figure.colorbar(image, ax=axes, extend="both", label="mean departure delay (minutes)")
