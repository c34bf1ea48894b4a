NAMES = frozenset()
