#include "engine/weights/weight_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "tests/weights/made_up_model.h"

namespace ete {
namespace {

class WeightStoreTest : public MadeUpModel {};

TEST_F(WeightStoreTest, LoadingNamesTheLastWeightThatIsThere) {
  std::vector<std::string> names;
  const WeightStore store(*device_, source_, weights_, lay_out(weights_, std::vector<double>(kLayers, 0)),
                          pool_, [&](double, const std::string& name) { names.push_back(name); });
  EXPECT_THAT(names, testing::Contains("layer0.b"));
  EXPECT_THAT(names, testing::Not(testing::Contains("")));
}

TEST_F(WeightStoreTest, EveryTensorIsKeptExactlyAndReleasedOnce) {
  const auto store = make_store();
  EXPECT_TRUE(store->repack_errors().empty());
  EXPECT_EQ(source_.releases(), 2 * kLayers + 2);
  std::vector<float> row(kCols);
  unpack_row(store->lm_head(), 7, row.data());  // tied
  EXPECT_EQ(row[3], source_.value("embed", 7 * kCols + 3));
  EXPECT_EQ(store->final_norm()[5], source_.value("norm", 5));
  EXPECT_EQ(store->lm_head().data, store->embedding().data);
}

TEST_F(WeightStoreTest, OffsetsAreAlignedAndTheDevicePartComesFirst) {
  const BlobLayout layout = lay_out(weights_.layers[0], 0.5);
  EXPECT_EQ(layout.places[0].device_rows, 32);  // half of 50 rows, in whole panels
  for (const WeightPlace& place : layout.places) {
    EXPECT_EQ(place.device_offset % 64, 0u);
    EXPECT_EQ(place.host_offset % 64, 0u);
    EXPECT_GE(place.host_offset, layout.device_bytes);
  }
  EXPECT_EQ(lay_out(weights_.layers[0], 1.0).places[0].device_rows, 0);
  EXPECT_EQ(lay_out(weights_.layers[0], 0).places[0].device_rows, kRows);
}

TEST_F(WeightStoreTest, PermutedRowsAreRestored) {
  // Two heads of 4: the file holds the pairs (i, i + 2) of a head side by side.
  source_.add("permuted", {8, kCols}, 0);
  ModelWeights weights = weights_;
  weights.layers.resize(1);
  weights.layers[0] = {{.name = "q",
                        .source = "permuted",
                        .shape = WeightShape::matrix,
                        .rows = 8,
                        .cols = kCols,
                        .permuted_heads = 2}};
  const WeightStore store(*device_, source_, weights, lay_out(weights, {0.0}), pool_, {});
  const SplitMatrix q =
      split_matrix(store.layer_layout(0).places[0], store.layer_home(0), store.layer_home(0), nullptr);
  const std::vector<int64_t> file_rows = {0, 2, 1, 3, 4, 6, 5, 7};
  std::vector<float> row(kCols);
  for (int64_t r = 0; r < 8; ++r) {
    unpack_row(q.device, r, row.data());
    EXPECT_EQ(row[1], source_.value("permuted", file_rows[static_cast<size_t>(r)] * kCols + 1)) << r;
  }
}

TEST_F(WeightStoreTest, RepackingIsMeasured) {
  weights_.layers[1][0].format = WeightFormat::w8_row;
  const auto store = make_store();
  ASSERT_EQ(store->repack_errors().size(), 1u);
  EXPECT_EQ(store->repack_errors()[0].tensor, "layer1.w");
  EXPECT_GT(store->repack_errors()[0].max_abs, 0);
  EXPECT_LT(store->repack_errors()[0].relative_rms, 0.01);
}

TEST_F(WeightStoreTest, WrongShapeNamesTheTensor) {
  weights_.layers[2][0].cols = kCols + 1;
  try {
    make_store();
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::corrupt);
    EXPECT_NE(std::string(error.what()).find("tensor layer2.w: shape [50, 40]; due is [50, 41]"),
              std::string::npos)
        << error.what();
  }
}

TEST_F(WeightStoreTest, WeightsThatDoNotFitNameTheTensor) {
  source_.add("huge", {kRows, kCols}, 100000);
  weights_.layers[1][0] = matrix("huge", WeightFormat::f16);
  try {
    make_store();
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
    const std::string message = error.what();
    EXPECT_TRUE(message.starts_with("made up: tensor huge, row ")) << message;
    EXPECT_NE(message.find(": f16: 100000"), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace ete
