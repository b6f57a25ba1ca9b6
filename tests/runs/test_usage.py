"""Device-hours, energy, price and CO2 of a run, from its events."""

from albert_tf.runs.usage import describe_usage

CHIPS = {"kind": "TPU", "number": 8, "hosts": 2, "watts": 378.5}
GPUS = {**CHIPS, "kind": "GPU", "measures": "GPUs"}
PRICES = {"price_per_device_hour": 3.22, "grams_per_kwh": 430.0}


def run_of(devices, joules=(None, None)):
    """An hour, killed in lost steps of another; after a day, half an hour."""
    start = {"start_up_s": 100.0, "restore_s": 20.0, "devices": devices}
    events = [
        {"event": "start", "time": 1120.0, **start},
        {"event": "checkpoint", "time": 4600.0, "joules": joules[0]},
        {"event": "resume", "time": 90_120.0, "lost_s": 3600.0, **start},
        {"event": "finish", "time": 91_800.0, "joules": joules[1]},
    ]
    return [{n: v for n, v in e.items() if v is not None} for e in events]


def test_all_processes_of_a_run_count():
    """By hand: 2.5 hours of 8 chips; 378.5 W are 7.57 kWh, at 430 g."""
    assert describe_usage(run_of(CHIPS), PRICES) == {
        "device-hours": "20 (TPU)",
        "price": "$64.4",
        "energy": "7.57 kWh, at 378.5 W per device",
        "CO2": "3.26 kg",
    }
    used = describe_usage(run_of(CHIPS), {"watts_per_device": 500.0})
    assert used["energy"] == "10 kWh, at 500 W per device"
    assert not {"price", "CO2"} & used.keys()


def test_measured_energy_is_that_of_all_hosts():
    """The joules of a process are those until its last event."""
    used = describe_usage(run_of(GPUS, (3.6e6, 1.8e6)), {})
    assert used["energy"] == "3 kWh, measured at the GPUs"


def test_what_is_unknown_is_left_out():
    """Chips without a published power, and the logs of older versions."""
    used = describe_usage(run_of({**CHIPS, "watts": None}), PRICES)
    assert used == {"device-hours": "20 (TPU)", "price": "$64.4"}
    old = [e for e in run_of(CHIPS) if e.pop("devices", 0) or True]
    assert describe_usage(old, PRICES) == {}
    assert describe_usage([], PRICES) == {}
