"""Sentences that a new back-end is tried on: chat of many lengths, as a model's own tokenizer reads it.

Random token ids would not do. A Cross-encoder scores nonsense nearly alike, so that ranks would be chance.
"""

from typing import NamedTuple

from polyrank.model.inference.parts import ContextPart, NetworkPart, PairPart
from polyrank.model.text.assembly import Assembler, Conversation

# The last turn of each is a good reply to the others.
CONVERSATIONS: tuple[tuple[str, ...], ...] = (
    ("hi", "Hello! How can I help you today?", "my parcel should have been here on monday", "What is the number?"),
    ("Do you like dogs?", "I love them! I have two, and they sleep on my bed.", "Mine is a lazy old beagle."),
    (
        "Good evening, I ordered a pair of running shoes three weeks ago and they have still not been delivered. I "
        "wrote to you twice, and nobody answered. I need them for a race on Saturday, so tell me what is going on.",
        "I am very sorry about that. I can send you another pair today by express, at no cost.",
    ),
    ("What do you do for a living?", "I'm a nurse. You?", "I teach maths at a high school.", "That must be hard work!"),
    (
        "how do i mount a usb stick",
        "lsblk shows its name, then: sudo mount /dev/sdb1 /mnt",
        "permission denied",
        "Are you root?",
    ),
    (
        "The app crashes whenever I open my photos.",
        "Which version is it?",
        "4.2.1, on Android 14",
        "Please update to 4.3.",
    ),
    ("I'd like a table for four tomorrow at 7 pm.", "At Luigi's there is one at 7:15 pm. Shall I book it?"),
    ("i can't log in", "Have you tried to reset your password?", "yes, but no mail comes", "Is it among your spam?"),
    (
        "We are planning a trip to Portugal in May. Have you been there?",
        "Twice. Lisbon is lovely, but full of tourists; Porto is smaller and much cheaper.",
        "How long would you stay, and do we need a car? The children are six and nine, and they get bored in museums.",
        "A week is enough, and the trains are good. They will love the beaches.",
    ),
    ("Can I cancel my subscription?", "Of course. It then ends on the 30th, and you are not charged again."),
    ("I've been learning the guitar since March.", "Cool! What kind of music do you play?", "Mostly old blues."),
    ("is it going to rain", "There is a 70 % chance of rain after 3 pm.", "ok thanks", "You're welcome!"),
    ("My card was charged twice: $49.99 on 3/12 and again on 3/13.", "I see both. The second one will be refunded."),
    (
        "What's your favourite film?",
        "Anything by Miyazaki.",
        "Never heard of him.",
        "He makes animated films in Japan.",
    ),
    (
        "I feel a bit down today.",
        "Oh no, what happened?",
        "I failed my driving test again.",
        "You will pass next time.",
    ),
    ("Does the blue jacket come in XL?", "Only in black and grey.", "Then grey, please.", "It is in your basket now."),
)
_JOINED = 2  # conversations, one after the other, that make a long context
_REPLIES = 4  # that each conversation is paired with: its own, and those of the next ones


class Sequence(NamedTuple):
    """A tokenised input. `candidate_start`: where segment 1 begins in a joint sequence; its length in others."""

    ids: list[int]
    candidate_start: int


def sequences(part: NetworkPart, assembler: Assembler) -> list[Sequence]:
    """Return what a part may be asked to read: contexts, candidates or 64 joint sequences."""
    if isinstance(part, PairPart):
        return _pairs(part, assembler)
    if isinstance(part, ContextPart):
        short = [turns[:end] for turns in CONVERSATIONS for end in range(1, len(turns))]
        long = [sum(CONVERSATIONS[start : start + _JOINED], ()) for start in range(0, len(CONVERSATIONS), _JOINED)]
        read = [assembler.context(Conversation.of(turns))[0] for turns in (*short, *long)]
    else:
        read, _ = assembler.candidates([text for turns in CONVERSATIONS for text in turns])
    return [Sequence(ids, len(ids)) for ids in read]


def _pairs(part: PairPart, assembler: Assembler) -> list[Sequence]:
    replies = [turns[-1] for turns in CONVERSATIONS * 2]
    found = []
    for number, (*turns, _) in enumerate(CONVERSATIONS):
        pairs, _ = assembler.pairs(Conversation.of(turns), replies[number : number + _REPLIES])
        joined = part.encoder.join(pairs, part.backbone().pad_id)
        for ids, mask in zip(joined.ids.tolist(), joined.mask.tolist(), strict=True):
            found.append(Sequence(ids[: sum(mask)], len(pairs.contexts[0])))
    return found
