"""What a text says, whatever its sentences are: the facts that it states, in their order."""


def missing(text: str, *facts: str) -> list[str]:
    """Return the facts (names, numbers with their units, flags) that the text does not state in the given order.

    A fact is searched for after the one before it. How the text is broken into lines does not matter.
    """
    words = " ".join(text.split())
    absent = []
    place = 0
    for fact in facts:
        found = words.find(fact, place)
        if found < 0:
            absent.append(fact)
        else:
            place = found + len(fact)
    return absent
