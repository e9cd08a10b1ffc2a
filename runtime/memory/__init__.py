"""Memory of every device of a training job: model states, activations, logits, working memory.

What is counted and where it comes from is in docs/memory.md. Arithmetic over arrays: one call evaluates one layout's
stages or thousands of layouts. What a layer keeps is in the descriptions of the layers (../step/layers/).
"""
