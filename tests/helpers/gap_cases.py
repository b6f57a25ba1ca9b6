"""Questions, choices, and what a choice makes of its question."""

GAP_CASES = [
    ("Paris lies on the ____ .", "Seine", "Paris lies on the Seine ."),
    ("What does user_name hold?", "it", "What does user_name hold? it"),
    ("_, _ or __", "a", "a, a or a"),
    ("_ _x y_ ___", "a", "a ax ya a"),
    ("a_b_c_d and _", "x", "a_b_c_d and x"),
    ("snake_ case__ _case", "x", "snakex casex xcase"),
    ("größe_in_м _", "ä", "größe_in_м ä"),
    ("日本_語 (_)", "は", "日本_語 (は)"),
    ("1_000 is _\n", "x", "1_000 is x\n"),
    ("_\n_", "x", "x\nx"),
    ("It is _.", r"\1_\\", r"It is \1_\\."),
    ("It is _.", "", "It is ."),
    ("", "here", " here"),
    ("_", "here", "here"),
]
