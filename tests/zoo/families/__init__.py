"""Small architectures by family, with random weights. A model is a function that gives (module, inputs); each family lists
its models in MODELS, and FAMILIES lists the families."""

from . import (
    audio,
    convolutional,
    decoders,
    diffusion,
    encoder_decoders,
    encoders,
    generative,
    graphs,
    mixtures,
    multimodal,
    recommendation,
    recurrent,
    reinforcement,
    state_space,
    vision_transformers,
)

FAMILIES = (
    audio, convolutional, decoders, diffusion, encoder_decoders, encoders, generative, graphs, mixtures, multimodal,
    recommendation, recurrent, reinforcement, state_space, vision_transformers,
)  # fmt: skip


def all_models() -> dict:
    """Model functions by "family/name"."""
    return {
        f"{family.__name__.rsplit('.', 1)[1]}/{model.__name__}": model for family in FAMILIES for model in family.MODELS
    }
