"""Models of the families that people train, with random weights, each with a batch that gives its loss."""
import gpt2


def _gpt2(dropout):
    return gpt2.make_model(dropout=dropout), gpt2.make_batch(1, 512, 50257)


def _gpt2_loss(dropout):
    """It gives its loss and no scores."""
    import torch
    from transformers.modeling_outputs import CausalLMOutput

    class Loss(torch.nn.Module):
        def __init__(self, projection):
            super().__init__()
            self.projection = projection

        def forward(self, x, labels):
            scores = self.projection(x)
            return torch.nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten())

    class Model(torch.nn.Module):
        def __init__(self, model):
            super().__init__()
            self.transformer, self.loss = model.transformer, Loss(model.lm_head)

        def forward(self, input_ids, labels):
            hidden = self.transformer(input_ids=input_ids).last_hidden_state
            return CausalLMOutput(loss=self.loss(hidden, torch.nn.functional.pad(labels[:, 1:], (0, 1), value=-100)))

    return Model(gpt2.make_model(dropout=dropout)), gpt2.make_batch(4, 512, 50257)


def _llama(dropout):
    """Grouped queries, rotary positions, RMSNorm, SwiGLU."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(vocab_size=32000, hidden_size=768, intermediate_size=2048, num_hidden_layers=12, num_attention_heads=12,
                         num_key_value_heads=4, attention_dropout=dropout, use_cache=False)
    model = LlamaForCausalLM(config)
    model.loss_type = "ForCausalLM"
    return model, gpt2.make_batch(1, 512, 32000)


def _bert(dropout):
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
    return BertForMaskedLM(config), gpt2.make_batch(4, 128, 30522)


def _images(batch):
    import torch

    pixels = torch.randn(batch, 3, 224, 224, generator=torch.Generator().manual_seed(1))
    return {"pixel_values": pixels, "labels": torch.arange(batch)}


OF_CLASSES = {"num_labels": 1000, "problem_type": "single_label_classification"}


def _vit(dropout):
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout, **OF_CLASSES)
    return ViTForImageClassification(config), _images(2)


def _resnet(_):
    from transformers import ResNetConfig, ResNetForImageClassification

    return ResNetForImageClassification(ResNetConfig(**OF_CLASSES)), _images(4)  # its defaults are ResNet-50's sizes


def _convnext(_):
    from transformers import ConvNextConfig, ConvNextForImageClassification

    return ConvNextForImageClassification(ConvNextConfig(**OF_CLASSES)), _images(4)  # its defaults are ConvNeXt-T's sizes


def _unet(_):
    import torch
    import unet

    generator = torch.Generator().manual_seed(1)
    batch = {"x": torch.randn(1, 3, 256, 256, generator=generator), "labels": torch.randint(2, (1, 256, 256), generator=generator)}
    return unet.UNet(), batch


def _efficientnet(_):
    from transformers import EfficientNetConfig, EfficientNetForImageClassification

    config = EfficientNetConfig(width_coefficient=1.0, depth_coefficient=1.0, hidden_dim=1280, image_size=224, dropout_rate=0.0,
                                drop_connect_rate=0.0, **OF_CLASSES)
    return EfficientNetForImageClassification(config), _images(4)


def _mobilenet(_):
    from transformers import MobileNetV2Config, MobileNetV2ForImageClassification

    return MobileNetV2ForImageClassification(MobileNetV2Config(classifier_dropout_prob=0.0, **OF_CLASSES)), _images(4)


def _t5(dropout):
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(dropout_rate=dropout, use_cache=False, decoder_start_token_id=0)  # its defaults are T5-small's sizes
    return T5ForConditionalGeneration(config), gpt2.make_batch(4, 128, 32128)


def _encoder(dropout):
    import encoder
    import torch

    return encoder.Encoder(dropout), {"x": torch.randn(4, 128, 512, generator=torch.Generator().manual_seed(1))}


MODELS = {"gpt2": ("GPT-2 124M", _gpt2), "gpt2loss": ("GPT-2 124M, 4 x 512, the loss alone", _gpt2_loss),
          "llama": ("Llama style, 12 x 768", _llama), "bert": ("BERT-base", _bert),
          "vit": ("ViT-B/16", _vit), "t5": ("T5-small", _t5), "encoder": ("nn.TransformerEncoder, 6 x 512", _encoder),
          "resnet": ("ResNet-50", _resnet), "convnext": ("ConvNeXt-T", _convnext), "unet": ("U-Net, 31M, 256 x 256", _unet),
          "efficientnet": ("EfficientNet-B0", _efficientnet), "mobilenet": ("MobileNetV2", _mobilenet)}  # fmt: skip


def make(name, dtype, dropout=0.0):
    """(what it is called, the model in training mode, keywords of a call)."""
    import torch

    title, make_model = MODELS[name]
    torch.manual_seed(0)
    model, batch = make_model(dropout)
    batch = {key: value.to(dtype) if value.is_floating_point() else value for key, value in batch.items()}
    return title, model.to(dtype).train(), batch
