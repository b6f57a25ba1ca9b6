"""What a run has used: device-hours, energy, money and CO2.

A device is a TPU chip, a GPU or, without these, a machine. The event of each
start names the devices, so that all processes of a resumed run count, each from
its start to its last event. The time between two processes does not.
"""

from collections.abc import Iterable, Mapping
from typing import Any

JOULES_PER_KWH = 3.6e6


def describe_usage(
    events: Iterable[Mapping[str, Any]], settings: Mapping[str, Any]
) -> dict[str, str]:
    """What a run has used, as text by name; {} if its log does not tell.

    `settings` are those of `DistributionConfig`.
    """
    processes: list[dict[str, Any]] = []
    for event in events:
        if event["event"] in ("start", "resume"):
            began = time_of_start(event)
            if processes:  # lost steps follow the last event
                ended = processes[-1]["ended"] + event.get("lost_s", 0.0)
                processes[-1]["ended"] = min(ended, began)
            processes.append({"began": began, **event.get("devices", {})})
        if processes:
            processes[-1]["ended"] = event["time"]
            processes[-1]["joules"] = event.get("joules")
    if not processes or not all("number" in one for one in processes):
        return {}
    hours, kwh = 0.0, 0.0
    sources: set[str] = set()
    watts_given = settings.get("watts_per_device")
    for one in processes:
        device_hours = (one["ended"] - one["began"]) / 3600 * one["number"]
        hours += device_hours
        watts = watts_given or one.get("watts")
        if one["joules"] is not None and not watts_given:
            kwh += one["joules"] * one["hosts"] / JOULES_PER_KWH
            sources.add(f"measured at the {one['measures']}")
        elif watts:
            kwh += device_hours * watts / 1000
            sources.add(f"at {watts:g} W per device")
        else:
            sources.add("")
    used = {"device-hours": f"{_short(hours)} ({one['kind']})"}
    if price := settings.get("price_per_device_hour"):
        used["price"] = f"${_short(hours * price)}"
    if "" not in sources:
        used["energy"] = f"{_short(kwh)} kWh, {' and '.join(sorted(sources))}"
        if grams := settings.get("grams_per_kwh"):
            used["CO2"] = f"{_short(kwh * grams / 1000)} kg"
    return used


def time_of_start(event: Mapping[str, Any]) -> float:
    """When the process began; of an event that is no start, its own time."""
    start_up_s = event.get("start_up_s", 0.0) + event.get("restore_s", 0.0)
    return event["time"] - start_up_s


def _short(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"
