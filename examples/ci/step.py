"""A step on a machine that compiles nothing: with KILN_REQUIRE_HIT=1 a program that is not in the pack is an error."""
import kiln
import models

model, inputs = models.classifier(batch=32)
kiln.compile(model)(*inputs).sum().backward()
counts = kiln.stats()
print(f"{counts['hits_mapped']} hits, {counts['compilations']} compilations")
