/// \file add.cpp
/// Tensors of libtorch that are added to workers: types, refusals by name, whose memory it is, the whole way.

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/ordered_dict.h>

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <tensorhub/server.hpp>
#include <tensorhub/tensorhub.hpp>
#include <tensorhub/testing/fake_device.hpp>
#include <tensorhub/torch.hpp>
#include <tensorhub/transports/tcp.hpp>
#include <utility>
#include <vector>

namespace {

using hub = tensorhub::hub<tensorhub::transports::tcp>;
using device_hub = tensorhub::hub<tensorhub::transports::tcp, tensorhub::testing::fake_device_memory>;
using named = std::vector<std::pair<std::string, at::Tensor>>;

/// Nobody is asked before a publish or an update: no server need be there.
tensorhub::worker_options who(std::string replica, std::string server = "tcp://127.0.0.1:1") {
  return {.server = std::move(server), .model = "m", .replica = std::move(replica)};
}

/// What `add` says of a tensor; empty: it takes it.
std::string refusal_of(const at::Tensor& tensor) {
  hub::publisher worker{who("a")};
  const named all{{"good", at::ones({2})}, {"layers.0.w", tensor}};
  try {
    tensorhub::torch::add(worker, all);
    return {};
  } catch (const tensorhub::error& refused) {
    CHECK(refused.code() == tensorhub::errc::invalid_argument);
    worker.add("good", all[0].second.data_ptr(), {2}, tensorhub::dtype::f32);  // it was not added
    return refused.sentence();
  }
}

/// Two floats, and a mark that they were given back.
struct watched_tensor {
  std::shared_ptr<bool> is_gone = std::make_shared<bool>(false);
  at::Tensor tensor = at::from_blob(
      new float[2]{1, 2}, {2},
      [gone = is_gone](void* memory) {
        delete[] static_cast<float*>(memory);
        *gone = true;
      },
      at::kFloat);
};

static_assert(!tensorhub::torch::detail::takes_devices<hub::publisher>);
static_assert(!tensorhub::torch::detail::takes_devices<hub::subscriber>);
static_assert(tensorhub::torch::detail::takes_devices<device_hub::publisher>);
static_assert(tensorhub::torch::detail::takes_devices<device_hub::subscriber>);

}  // namespace

TEST_CASE("every element type of libtorch is known with its size, or is in the list of those that are not") {
  std::string unknown;
  for (int i = 0; i < static_cast<int>(at::ScalarType::NumOptions); ++i) {
    const auto type = static_cast<at::ScalarType>(i);
    if (type == at::ScalarType::Undefined) continue;
    const std::string name = c10::toString(type);
    const auto ours = tensorhub::torch::dtype_named(name);
    CAPTURE(name);
    if (ours)
      CHECK(size_bytes(*ours) == c10::elementSize(type));
    else if (name.find("Bits") == std::string::npos && name.find("Int") == std::string::npos)
      unknown += name + " ";
  }
  CHECK(unknown == "ComplexHalf ");
  CHECK(tensorhub::torch::dtype_named("Half") == tensorhub::dtype::f16);
  CHECK(tensorhub::torch::dtype_named("BFloat16") == tensorhub::dtype::bf16);
  CHECK(tensorhub::torch::dtype_named("Char") == tensorhub::dtype::i8);
  CHECK(tensorhub::torch::dtype_named("Byte") == tensorhub::dtype::u8);
  CHECK(tensorhub::torch::dtype_named("Bool") == tensorhub::dtype::boolean);
  CHECK(tensorhub::torch::dtype_named("Int") == tensorhub::dtype::i32);
  CHECK(tensorhub::torch::dtype_named("Float8_e4m3fn") == tensorhub::dtype::f8_e4m3);
  CHECK(!tensorhub::torch::dtype_named("QInt8"));
}

TEST_CASE("what cannot be in place is refused by its name, and nothing of the call was added") {
  auto released = at::ones({4});
  released.storage().set_nbytes(0);
  auto too_short = at::ones({8}).slice(0, 4);
  too_short.storage().set_nbytes(16);
  const auto complex = at::ones({2}, at::kComplexFloat);
  const std::vector<std::pair<at::Tensor, std::string>> cases{
      {at::Tensor{}, "is undefined"},
      {at::empty({2}, at::device(at::kMeta)), "is on the meta device"},
      {at::ones({2, 2}).to_sparse(), "has layout Sparse, expected Strided"},
      {at::quantize_per_tensor(at::ones({4}), 0.1, 0, at::kQInt8), "is quantized"},
      {complex.conj(), "is a conjugate view"},
      {at::_neg_view(at::ones({2})), "is a negated view"},
      {at::ones({2, 3}).t(), "is not contiguous"},
      {at::ones({1, 2, 3, 3}).contiguous(at::MemoryFormat::ChannelsLast), "is not contiguous"},
      {released, "has a storage of 0 bytes, expected at least 16"},
      {too_short, "has a storage of 16 bytes, expected at least 32"},
      {at::empty({2}, at::kComplexHalf), "has elements of type ComplexHalf"}};
  for (const auto& each : cases) {
    const std::string said = refusal_of(each.first);
    CHECK_MESSAGE(said.starts_with("tensor 'layers.0.w' " + each.second),
                  "\"" << said << "\", expected: " << each.second);
  }
  CHECK(refusal_of(complex).empty());
  CHECK(refusal_of(at::ones({2, 3}).requires_grad_()).empty());
  CHECK(refusal_of(at::ones({8}).slice(0, 4)).empty());
}

TEST_CASE("a worker keeps the memory that it was told of until it ends") {
  watched_tensor one;
  {
    hub::publisher worker{who("a")};
    tensorhub::torch::add(worker, named{{"w", one.tensor}});
    one.tensor.set_data(at::ones({2}));
    CHECK(!*one.is_gone);
  }
  CHECK(*one.is_gone);
}

TEST_CASE("check names the tensor that has moved") {
  hub::subscriber worker{who("a")};
  auto tensor = at::ones({2});
  const auto added = tensorhub::torch::add(
      worker, named{{"v", at::ones({3})}, {"w", tensor}, {"none", at::empty({0})}}, "policy.");
  CHECK(added.size() == 3);
  CHECK_NOTHROW(added.check());
  tensor.set_data(at::ones({2}));
  CHECK_THROWS_WITH_AS(added.check(), doctest::Contains("tensor 'policy.w' has moved since it was added"),
                       const tensorhub::error&);
}

TEST_CASE("tensors of every shape come from an ordered dictionary into a map of the other process's") {
  hub::reference_server server;
  torch::OrderedDict<std::string, at::Tensor> given;
  given.insert("a.weight", at::rand({300, 500}).requires_grad_());
  given.insert("b.half", at::rand({7}).to(at::kBFloat16));
  given.insert("c.count", at::scalar_tensor(42, at::kLong));
  given.insert("d.mask", at::ones({3, 1}, at::kBool));
  given.insert("e.nothing", at::empty({0, 4}));
  std::map<std::string, at::Tensor> taken;
  for (const auto& each : given) taken["m." + each.key()] = at::zeros_like(each.value());

  hub::publisher trainer{who("trainer", server.address())};
  hub::subscriber rollout{who("rollout", server.address())};
  CHECK(tensorhub::torch::add(trainer, given, "m.").size() == 5);
  tensorhub::torch::add(rollout, taken);
  trainer.publish(1);
  rollout.update(1);
  for (const auto& each : given)
    CHECK_MESSAGE(at::equal(each.value(), taken.at("m." + each.key())), each.key());
  trainer.unpublish();
}
