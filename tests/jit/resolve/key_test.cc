// What decides a key, and what does not: a matrix of small changes to a graph.

#include "jit/resolve/key.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>

#include "base/build_id.h"
#include "frontend/canonical/canonical.h"
#include "frontend/text/text.h"

namespace kiln {
namespace {

const Target k_target{"cpu", "x86-64-v4"};

Digest key_of(const std::string& text, const Target& target = k_target) {
  auto graph = parse_text(text);
  EXPECT_TRUE(graph.ok()) << graph.status().to_string();
  return program_key(canonicalise(*graph).digest, target).digest();
}

std::string graph(const std::string& shape = "[4, 8]", const std::string& dtype = "f32",
                  const std::string& strides = "", const std::string& eps = "1e-05", const std::string& output = "") {
  return "graph(%x: " + dtype + shape + strides +
         ") {\n  %y, %m, %r = layer_norm(%x, none, none) {normalized_rank = 1, eps = " + eps +
         "}\n  %z = exp(%y)\n  return %z" + output + "\n}\n";
}

TEST(Key, EverySemanticInputChangesIt) {
  std::set<std::string> keys = {key_of(graph()).to_hex()};
  const std::vector<Digest> changed = {
      key_of(graph("[4, 9]")),
      key_of(graph("[4, 8]", "f64")),
      key_of(graph("[4, 8]", "f32", "{1, 4}")),
      key_of(graph("[4, 8]", "f32", "", "1e-06")),
      key_of(graph("[4, 8]", "f32", "", "1e-05", " {1, 4}")),
      key_of(graph(), {"cpu", "x86-64-v3"}),
      key_of(graph(), {"reference", "x86-64-v4"}),
      key_of(graph(), {"cpu", "x86-64-v4", "driver 7"}),
      key_of(graph(), {"cpu", "x86-64-v4", "driver 8"}),
      key_of(graph(), {"cpu", "x86-64-v4", {}, true}),
      key_of(graph(), {"cpu", "x86-64-v4", {}, false, 1}),
      key_of(graph(), {"cpu", "x86-64-v4", {}, false, 3}),
  };
  for (const Digest& key : changed) EXPECT_TRUE(keys.insert(key.to_hex()).second);
}

TEST(Key, NamesAndOrderDoNotMatter) {
  const std::string a = "graph(%x: f32[4]) {\n  %a = exp(%x)\n  %b = neg(%x)\n  return %a, %b\n}\n";
  const std::string b =
      "graph(%in: f32[4]) {\n  %n = neg(%in)\n  %dead = tanh(%in)\n  %e = exp(%in)\n  return %e, %n\n}\n";
  EXPECT_EQ(key_of(a), key_of(b));
}

TEST(Key, NeighbourhoodsDifferByFamilySizesAndMachine) {
  std::set<std::string> keys;
  for (const char* family : {"gemm f32", "gemm bf16"}) {
    for (const char* sizes : {"0,9,12,10", "0,9,12,9"}) {
      for (const char* machine : {"one", "other"}) {
        EXPECT_TRUE(keys.insert(near_key(family, sizes, k_target, machine).digest().to_hex()).second);
      }
    }
  }
}

TEST(Key, LevelsDoNotMeet) {
  auto parsed = parse_text(graph());
  const Digest canonical = canonicalise(*parsed).digest;
  EXPECT_NE(program_key(canonical, k_target).digest(), plan_key(canonical, k_target).digest());
}

TEST(Key, WhatWasNotCheckedHasAKeyOfItsOwnWithoutDriver) {
  auto parsed = parse_text(graph());
  const Digest canonical = canonicalise(*parsed).digest;
  const Target with_driver{k_target.backend, k_target.name, "driver 7"};
  EXPECT_NE(program_key(canonical, k_target).digest(), program_key(canonical, k_target, Proof::deferred).digest());
  EXPECT_EQ(program_key(canonical, with_driver, Proof::deferred).digest(),
            program_key(canonical, k_target, Proof::deferred).digest());
}

TEST(Key, AnotherCompilerIsAnotherKeyOfCodeUnlessItWasNotChecked) {
  const Digest spec = digest_of("a spec");
  EXPECT_NE(code_key(spec, k_target, "compiler 1").digest(), code_key(spec, k_target, "compiler 2").digest());
  EXPECT_EQ(code_key(spec, k_target, "compiler 1", Proof::deferred).digest(),
            code_key(spec, k_target, "compiler 2", Proof::deferred).digest());
}

TEST(Key, ItNamesTheGeneratorOfItsBackendAlone) {
  const auto generator_of = [](const std::string& backend) {
    const Key key = program_key(digest_of("a graph"), {backend, "a target"});
    return std::ranges::find(key.parts, "generator", &Key::Part::name)->value;
  };
  EXPECT_EQ(generator_of("cpu"), generator_build_id("cpu"));
  std::set<std::string> generators = {std::string(generator_build_id())};
  for (const char* backend : {"cpu", "cuda", "level_zero", "of another tree"}) {
    EXPECT_TRUE(generators.insert(generator_of(backend)).second) << backend;
  }
}

TEST(Key, ItsDigestIsThatOfItsParts) {
  auto parsed = parse_text(graph());
  const Key key = program_key(canonicalise(*parsed).digest, k_target);
  EXPECT_EQ(key.digest(), digest_of(key.to_json()));
  for (size_t i = 0; i < key.parts.size(); ++i) {
    Key other = key;
    other.parts[i].value += "x";
    EXPECT_NE(other.digest(), key.digest()) << key.parts[i].name;
  }
}

}  // namespace
}  // namespace kiln
