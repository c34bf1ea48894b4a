"""What a capture may name: all that is called or made while one is read, name by name, with torch 2.13.

What is not here is refused. Functions and classes that guards look at are no part of it: they are kept as their names, which
nothing calls (_situations_2_13.py).
"""

_NAMES = {
    "builtins": "bytearray complex dict frozenset list range set slice tuple",
    "collections": "OrderedDict defaultdict deque",
    "_operator": "add eq floordiv ge getitem gt le lt mod mul ne neg pow sub truediv",
    "functools": "partial",
    "math": "ceil floor trunc",
    "kiln._reasons": "Reason",
    "kiln.torch.attend": "attend attend_backward attention_of_scores attention_scores",
    "kiln.torch.fused_attention": "fused_attention fused_attention_backward",
    "kiln.torch.distributions": "bernoulli cauchy exponential geometric integers log_normal normal places race uniform",
    "kiln.torch.draws": "draw_seed random_words",
    "kiln.torch.dropout": "draw_mask draw_mask_in_order",
    "kiln.torch._packages_2_13": "KeptCode Record",
    "kiln.torch._situations_2_13": "Named Placed fill import_source instance rebuild",
    "kiln.torch.loss_in_rows": "scaled",
    "kiln.torch.pairs": "as_complex as_pairs each_in_pairs in_pairs",
    "kiln.torch.partition": "resolve_negative",
    "kiln.torch.steps": "run_in_steps",
    "kiln.torch.subgraphs": "run_subgraph",
    "kiln.torch.tensors": "relayout",
    "kiln.torch.write_back": "own_tensor write_back",
    "sympy.core.add": "Add",
    "sympy.core.mul": "Mul",
    "sympy.core.numbers": "Float Half Integer NegativeOne One Rational Zero",
    "sympy.core.power": "Pow",
    "sympy.core.symbol": "Symbol",
    "torch":
        "Size SymBool SymFloat SymInt Tensor bfloat16 bool channels_last channels_last_3d complex128 complex64 contiguous_format device float16 "
        "float32 float64 int16 int32 int64 int8 preserve_format strided sym_float sym_int sym_max sym_min sym_not uint8",
    "torch._C._functionalization":
        "InverseReturnMode _conj_ViewMeta _neg_view_ViewMeta _reshape_alias_ViewMeta _unsafe_view_ViewMeta alias_ViewMeta "
        "as_strided_ViewMeta detach_ViewMeta diagonal_ViewMeta expand_ViewMeta permute_ViewMeta select_int_ViewMeta "
        "slice_Tensor_ViewMeta split_Tensor_ViewMeta split_with_sizes_ViewMeta squeeze_ViewMeta squeeze_dim_ViewMeta "
        "squeeze_dims_ViewMeta t_ViewMeta transpose_int_ViewMeta unbind_int_ViewMeta unfold_ViewMeta unsqueeze_ViewMeta "
        "view_ViewMeta view_as_complex_ViewMeta view_as_real_ViewMeta view_dtype_ViewMeta",
    "torch._C._dynamo.guards": "GlobalStateGuard",
    "torch._dynamo.guards":
        "GuardBuilder.AUTOGRAD_SAVED_TENSORS_HOOKS GuardBuilder.BOOL_MATCH GuardBuilder.BUILTIN_MATCH "
        "GuardBuilder.CLASS_MATCH GuardBuilder.CLOSURE_MATCH GuardBuilder.CONSTANT_MATCH "
        "GuardBuilder.CONSTANT_SUBCLASS_MATCH GuardBuilder.COUNT_ITERATOR_MATCH GuardBuilder.DEFAULT_DEVICE "
        "GuardBuilder.DETERMINISTIC_ALGORITHMS GuardBuilder.DICT_CONTAINS GuardBuilder.DICT_KEYS_MATCH "
        "GuardBuilder.DICT_NOT_CONTAINS GuardBuilder.DISPATCH_KEY_SET_MATCH GuardBuilder.DUAL_LEVEL "
        "GuardBuilder.DUPLICATE_INPUT GuardBuilder.EMPTY_NN_MODULE_HOOKS_DICT GuardBuilder.EQUALS_MATCH "
        "GuardBuilder.FUNCTION_MATCH GuardBuilder.FUNCTORCH_STACK_MATCH GuardBuilder.GLOBAL_STATE "
        "GuardBuilder.GRAD_MODE GuardBuilder.HASATTR GuardBuilder.ID_MATCH GuardBuilder.MAPPING_KEYS_CHECK "
        "GuardBuilder.MODULE_MATCH GuardBuilder.NONE_MATCH GuardBuilder.NOT_NONE_MATCH "
        "GuardBuilder.NOT_PRESENT_IN_GENERIC_DICT GuardBuilder.RANGE_ITERATOR_MATCH GuardBuilder.SEQUENCE_LENGTH "
        "GuardBuilder.SET_CONTAINS GuardBuilder.SET_NOT_CONTAINS GuardBuilder.SHAPE_ENV GuardBuilder.TENSOR_MATCH "
        "GuardBuilder.TORCH_FUNCTION_STATE GuardBuilder.TUPLE_ITERATOR_LEN GuardBuilder.TYPE_MATCH GuardsState "
        "ShapeCodeParts _Missing",
    "torch._dynamo.output_graph": "OutputGraphGuardsState",
    "torch._dynamo.package": "SerializedCode _DynamoCodeCacheEntry _GuardedCodeCacheEntry",
    "torch._dynamo.source":
        "AttrSource CallFunctionNoArgsSource CallMethodItemSource CellContentsSource ClosureSource CodeSource "
        "ConstDictKeySource ConstantSource ConvertIntSource DataclassFieldsSource DefaultsSource DictGetItemSource "
        "DictSubclassGetItemSource FloatTensorSource GenericAttrSource GetItemSource GlobalSource GlobalStateSource "
        "GradSource ListGetItemSource LocalCellSource LocalSource NNModuleSource NamedTupleFieldsSource "
        "NegateSource NonSerializableSetGetItemSource ParamBufferSource ShapeEnvSource SkipGuardSource "
        "TensorProperty "
        "TensorPropertySource TupleIteratorGetItemSource TypeDictSource TypeMROSource TypeSource "
        "UnspecializedBuiltinNNModuleSource UnspecializedNNModuleSource UnspecializedParamBufferSource WeakRefCallSource",
    "torch._functorch._aot_autograd.aot_autograd_result":
        "BundledAOTAutogradCacheArtifact BundledAOTAutogradResult BundledCompiledBackward BundledCompiledForward",
    "torch._functorch._aot_autograd.descriptors":
        "AOTInput AOTOutput BackwardTokenAOTInput BackwardTokenAOTOutput BufferAOTInput DifferentiableAOTInput "
        "DifferentiableAOTOutput DummyAOTInput DummyAOTOutput ForwardTokenAOTInput ForwardTokenAOTOutput GradAOTOutput "
        "InputMutationAOTOutput IntermediateBaseAOTOutput MetadataMutationAOTOutput ParamAOTInput "
        "PhiloxBackwardBaseOffsetAOTInput PhiloxBackwardSeedAOTInput PhiloxForwardBaseOffsetAOTInput "
        "PhiloxForwardSeedAOTInput PhiloxUpdatedBackwardOffsetAOTOutput PhiloxUpdatedForwardOffsetAOTOutput "
        "PlainAOTInput PlainAOTOutput SavedForBackwardsAOTOutput SavedForBackwardsNoVcCheckAOTOutput "
        "SubclassGetAttrAOTInput SubclassGetAttrAOTOutput SubclassSizeAOTInput SubclassSizeAOTOutput "
        "SubclassStrideAOTInput SubclassStrideAOTOutput SyntheticBaseAOTInput TangentAOTInput ViewBaseAOTInput",
    "torch._functorch._aot_autograd.runtime_wrappers": "AOTDedupeWrapper AOTDispatchSubclassWrapper AOTSyntheticBaseWrapper",
    "torch._functorch._aot_autograd.schemas":
        "CacheableAOTConfig InputAliasInfo MemoryFormatMeta MutationType OpaqueMeta OutputAliasInfo OutputType "
        "PlainTensorMeta ViewAndMutationMeta",
    "torch._functorch._aot_autograd.functional_utils": "MetadataKey ViewMetaSequence",
    "torch._guards": "DuplicateInputs Guard GuardsSet StorageOverlap",
    "torch._subclasses.functional_tensor": "FunctionalTensor",
    "torch._utils":
        "_rebuild_meta_tensor_no_storage _rebuild_parameter_with_state _rebuild_tensor_v2 torch.contiguous_format",
    "torch.fx.experimental.symbolic_shapes": "SymIntEqByExpr _CppShapeGuardsHelper _ShapeGuardsHelper",
    "torch.nn.parameter": "Parameter",
    "torch.serialization": "_get_layout",
    "torch.utils._ordered_set": "OrderedSet",
    "torch.utils._sympy.functions":
        "CeilToInt CleanDiv FloatTrueDiv FloorDiv FloorToInt IntTrueDiv Max Min Mod PythonMod ToFloat TruncToInt",
}

NAMES = frozenset((module, name) for module, names in _NAMES.items() for name in names.split())
