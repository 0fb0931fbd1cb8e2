"""Audit images that you made yourself, with answers that you have: no model is loaded.

    python examples/audit_answers.py [ANSWERS.csv]

A row of the table says what one image shows on one axis. Without a table, a known world stands in for your model and
your VQA: it "draws" 48 images of every prompt about two occupations, and knows what each of them shows.
"""

import sys

import pandas as pd

import seesaw

AXES = ["gender", "bodytype", "emotion"]
dataset = seesaw.load_dataset("occupation").select(subjects=["nurse", "engineer"], axes=AXES)


def drawn_by_a_known_world(images: int) -> pd.DataFrame:
    """Answers about `images` images of every prompt: the columns that an answers table needs, a row an answer."""
    rows = [
        (world.name, subject, prompt.source_axis, prompt.source_value, image, axis, answers[axis])
        for world in (seesaw.WORLDS["alder"], seesaw.WORLDS["birch"])
        for subject in dataset.subjects
        for prompt in seesaw.prompts_of(dataset, subject)
        for image in range(images)
        if (answers := world.sample(prompt.text, seed=image)) is not None  # else the image shows no person
        for axis in AXES
    ]
    columns = ["model", "subject", "source_axis", "source_value", "image", "axis", "answer"]
    return pd.DataFrame(rows, columns=columns)


answers = pd.read_csv(sys.argv[1]) if len(sys.argv) > 1 else drawn_by_a_known_world(48)
result = seesaw.analyze(answers, dataset)
print(*result.summary.lines(), sep="\n")

# what intervening on one axis does to another, where it is more than chance
table = result.uncertainty
effects = table[(table["source_axis"] != table["target_axis"]) & ((table["low"] > 0) | (table["high"] < 0))]
print(effects.sort_values("is").round(2).to_string(index=False))

model, subject = table.loc[0, ["model", "subject"]]
picture = seesaw.draw_matrix(table, model=model, subject=subject, label=f"IS of {subject} on {model}")
print(f"the matrix of {subject} on {model} is drawn in {picture.save('matrix.svg')}")
