// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// Manifests that are wrong in themselves, with a right CRC: what a bug or another program would write.

#include <catch2/catch_message.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "Sporos_Crc32c.hpp"
#include "Sporos_Error.hpp"
#include "impl/Sporos_CheckpointFormat.hpp"

namespace {

using Catch::Matchers::ContainsSubstring;
using namespace Sporos::Impl;

/// Two tensors in two arrays, written by two ranks
CheckpointManifest good_manifest() {
  CheckpointManifest manifest;
  manifest.step = 12;
  manifest.optimizer_step = 12;
  manifest.ranks = 2;
  manifest.data_bytes = 4096;
  manifest.arrays = {{"parameters", ElementType::bfloat16}, {"master", ElementType::float32}};
  manifest.layout.add("a", {10, 20}, true);
  manifest.layout.add("b", {7}, false);
  for (int rank = 0; rank < 2; ++rank) {
    for (CheckpointPiece const& piece :
         checkpoint_pieces(manifest.layout, manifest.arrays, manifest.layout.owned(rank, 2)))
      manifest.pieces.push_back(piece);
  }
  return manifest;
}

/// What is said of the manifest after a change to its JSON
template <class Change>
std::string message_after(Change const& change) {
  nlohmann::json json = nlohmann::json::parse(good_manifest().to_text());
  json.erase("crc32c");
  change(json);
  std::string const rest = json.dump().substr(1);
  char first_line[32];
  std::snprintf(first_line, sizeof first_line, "{\"crc32c\": \"%08x\",\n", Sporos::crc32c(rest.data(), rest.size()));
  try {
    CheckpointManifest::from_text(first_line + rest, "dir/manifest.json");
  } catch (Sporos::InputError const& error) {
    return error.what();
  }
  return "accepted";
}

TEST_CASE("A manifest is read as it was written", "[io][checkpoint]") {
  CheckpointManifest const manifest = good_manifest();
  REQUIRE(CheckpointManifest::from_text(manifest.to_text(), "x").to_text() == manifest.to_text());
  REQUIRE(message_after([](nlohmann::json&) {}) == "accepted");
}

TEST_CASE("Pieces that are missing, double, overlapping or outside are refused by the tensor's name",
          "[io][checkpoint]") {
  auto const piece = [](nlohmann::json& json, std::size_t i) -> nlohmann::json& { return json["pieces"][i]; };
  std::size_t const pieces = good_manifest().pieces.size();
  for (std::size_t i = 0; i < pieces; ++i) {
    CAPTURE(i);
    CHECK_THAT(message_after([&](nlohmann::json& json) { json["pieces"].erase(i); }), ContainsSubstring("pieces"));
    CHECK_THAT(message_after([&](nlohmann::json& json) { json["pieces"].push_back(json["pieces"][i]); }),
               ContainsSubstring("pieces that end at"));
    CHECK_THAT(message_after([&](nlohmann::json& json) { piece(json, i)[3] = piece(json, i)[3].get<int>() + 1; }),
               ContainsSubstring("pieces"));
    CHECK_THAT(message_after([&](nlohmann::json& json) { piece(json, i)[2] = piece(json, i)[2].get<int>() + 1; }),
               ContainsSubstring("pieces"));
    CHECK_THAT(message_after([&](nlohmann::json& json) { piece(json, i)[2] = -1; }), ContainsSubstring("pieces"));
    CHECK_THAT(message_after([&](nlohmann::json& json) { piece(json, i)[1] = 2; }),
               ContainsSubstring("a piece of tensor 2"));
    CHECK_THAT(message_after([&](nlohmann::json& json) { piece(json, i)[0] = 2; }), ContainsSubstring("in array 2"));
    CHECK_THAT(message_after([&](nlohmann::json& json) { piece(json, i)[3] = 0; }),
               ContainsSubstring("with 0 elements"));
    CHECK_THAT(message_after([&](nlohmann::json& json) { piece(json, i)[3] = std::int64_t(1) << 62; }),
               ContainsSubstring("with 4611686018427387904 elements"));
  }
}

TEST_CASE("Names, shapes and types that cannot be are refused", "[io][checkpoint]") {
  auto const renamed = [](std::string const& name) {
    return message_after([&](nlohmann::json& json) { json["tensors"][0]["name"] = name; });
  };
  for (char const* name : {"", "..", "../x", "x/../y", "/x", "x/", "a\nb", "b", "b/c"}) {
    CAPTURE(name);
    CHECK_THAT(renamed(name), ContainsSubstring("dir/manifest.json: ") && ContainsSubstring("tensor name \""));
  }
  CHECK_THAT(message_after([](nlohmann::json& json) { json["tensors"][0]["shape"] = {-1, 20}; }),
             ContainsSubstring("(-1, 20)"));
  CHECK_THAT(message_after([](nlohmann::json& json) { json["tensors"][0]["shape"] = {1ll << 40, 1ll << 40}; }),
             ContainsSubstring("2^63"));
  CHECK_THAT(message_after([](nlohmann::json& json) { json["tensors"][0]["shape"] = "x"; }),
             ContainsSubstring("dir/manifest.json: "));
  CHECK_THAT(message_after([](nlohmann::json& json) { json["arrays"][0]["type"] = "float8"; }),
             ContainsSubstring("unknown element type float8"));
  CHECK_THAT(message_after([](nlohmann::json& json) { json["version"] = 2; }),
             ContainsSubstring("version 2, this program reads"));
  CHECK_THAT(message_after([](nlohmann::json& json) { json["format"] = "other"; }), ContainsSubstring("\"other\""));
  for (char const* member :
       {"step", "optimizer_step", "ranks", "data_bytes", "metadata", "arrays", "tensors", "pieces"})
    CHECK_THAT(message_after([&](nlohmann::json& json) { json.erase(member); }), ContainsSubstring(member));
}

}  // namespace
