"""Reads YAML files and refuses what a parser lets pass: check_yaml.py FILE..."""

import sys

import yaml


class Strict(yaml.SafeLoader):
    """A key that is given twice is an error, not the last one's win."""


def mapping(loader, node, deep=False):
    seen = set()
    for key, _ in node.value:
        if key.tag == "tag:yaml.org,2002:merge":
            continue
        name = loader.construct_object(key, deep=True)
        if name in seen:
            raise yaml.constructor.ConstructorError(None, None, f"{name!r} is given twice", key.start_mark)
        seen.add(name)
    loader.flatten_mapping(node)
    return yaml.SafeLoader.construct_mapping(loader, node, deep)


Strict.add_constructor("tag:yaml.org,2002:map", mapping)


def main():
    status = 0
    for name in sys.argv[1:]:
        try:
            with open(name, encoding="utf-8") as f:
                if not any(doc is not None for doc in yaml.load_all(f, Strict)):
                    raise yaml.YAMLError("is empty")
        except yaml.YAMLError as e:
            print(f"check_yaml: {name}: {e}", file=sys.stderr)
            status = 1
    sys.exit(status)


main()
