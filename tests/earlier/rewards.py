def score(completion_ids, **_):
    return [sum(token < 128 for token in ids) / len(ids) for ids in completion_ids]


def each_token(completion_ids, **_):
    return [[float(token < 128) for token in ids] for ids in completion_ids]


def constant(completions, **_):
    return [1.0 for _ in completions]
