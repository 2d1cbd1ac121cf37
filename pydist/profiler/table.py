"""Events as a table of text."""

_UNITS = {"s": 1e6, "ms": 1e3, "us": 1.0}


def time_text(us, unit=None):
    """Microseconds as text in s, ms or us: "1.234ms"."""
    unit = unit or ("s" if us >= 1e6 else "ms" if us >= 1e3 else "us")
    return f"{us / _UNITS[unit]:.3f}{unit}"


def memory_text(bytes):
    """Bytes as text in B, KB, MB or GB."""
    for size, name in ((1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "KB")):
        if abs(bytes) >= size:
            return f"{bytes / size:.2f} {name}"
    return f"{bytes} B"


def _share(part, whole):
    return f"{100 * part / whole if whole else 0:.2f}%"


def _scale(values, unit):
    """(divisor, "G" + unit) such that the least positive value is more than 1."""
    least = min((v for v in values if v > 0), default=1)
    for size, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "K")):
        if least >= size:
            return size, prefix + unit
    return 1, unit


def _sorted(events, sort_by):
    name = sort_by.replace("cuda", "device").replace("xpu", "device")
    if events and not hasattr(events[0], name):
        raise ValueError(
            f"table: sort_by is {sort_by!r} (expected count, cpu_time_total, self_cpu_time_total, flops or such)"
        )
    return sorted(events, key=lambda e: getattr(e, name), reverse=True)


def _columns(events, total, profile_memory, with_flops, time_unit):
    """(title, event -> text) of each column after the name."""
    columns = [
        ("Self CPU %", lambda e: _share(e.self_cpu_time_total, total)),
        ("Self CPU", lambda e: time_text(e.self_cpu_time_total, time_unit)),
        ("CPU total %", lambda e: _share(0 if e.is_async else e.cpu_time_total, total)),
        ("CPU total", lambda e: time_text(e.cpu_time_total, time_unit)),
        ("CPU time avg", lambda e: time_text(e.cpu_time, time_unit)),
    ]
    on_gpu = events.self_device_time_total
    if on_gpu:
        columns += [
            ("Self CUDA", lambda e: time_text(e.self_device_time_total, time_unit)),
            ("Self CUDA %", lambda e: _share(e.self_device_time_total, on_gpu)),
            ("CUDA total", lambda e: time_text(e.device_time_total, time_unit)),
            ("CUDA time avg", lambda e: time_text(e.device_time, time_unit)),
        ]
    if profile_memory:
        columns += [
            ("CPU Mem", lambda e: memory_text(e.cpu_memory_usage)),
            ("Self CPU Mem", lambda e: memory_text(e.self_cpu_memory_usage)),
        ]
    columns.append(("# of Calls", lambda e: str(e.count)))
    if with_flops:
        for name, unit, title in (("flops", "FLOPs", "Total {}"), ("bytes", "B", "Moved {}")):
            size, text = _scale([getattr(e, name) for e in events], unit)
            columns.append(
                (title.format(text), lambda e, n=name, s=size: f"{getattr(e, n) / s:.3f}" if getattr(e, n) else "--")
            )
    return columns


def build_table(
    events, *, sort_by, row_limit, widths, header, top_level_events_only, time_unit, profile_memory, with_flops
):
    """See EventList.table."""
    if time_unit is not None and time_unit not in _UNITS:
        raise ValueError(f"table: time_unit is {time_unit!r} (expected 's', 'ms', 'us' or None)")
    dropped = (
        f"{events.dropped} events were dropped: the buffer was full (see profile's max_events)\n"
        if events.dropped
        else ""
    )
    if not events:
        return dropped
    total = events.self_cpu_time_total
    rows = _sorted(events, sort_by) if sort_by else list(events)
    if top_level_events_only:
        rows = [e for e in rows if e.cpu_parent is None]
    rows = rows[:row_limit] if row_limit >= 0 else rows

    def cut(text, width):
        return text if width is None or len(text) <= width else text[: width - 3] + "..."

    columns = [("Name", lambda e: cut(e.key, widths[0]))]
    columns += _columns(events, total, profile_memory, with_flops, time_unit)
    if any(e.input_shapes for e in rows):
        columns.append(("Input Shapes", lambda e: cut(str(e.input_shapes), widths[1])))
    if any(e.stack for e in rows):
        columns.append(("Source Location", lambda e: cut(e.stack[0] if e.stack else "", widths[2])))
    texts = [[title for title, _ in columns]] + [[text(e) for _, text in columns] for e in rows]
    sizes = [max(len(row[k]) for row in texts) for k in range(len(columns))]
    rule = "  ".join("-" * size for size in sizes)
    lines = ["  ".join(text.rjust(size) for text, size in zip(row, sizes)) for row in texts]
    top = ["=" * len(rule), header] if header is not None else []
    if top_level_events_only:
        top += ["=" * len(rule), "This report only display top-level ops statistics"]
    totals = [f"Self CPU time total: {time_text(total, time_unit)}"]
    if events.self_device_time_total:
        totals.append(f"Self CUDA time total: {time_text(events.self_device_time_total, time_unit)}")
    return "\n".join([*top, rule, lines[0], rule, *lines[1:], rule, *totals, dropped])
