/// \file blake3.cpp
/// BLAKE3 with every number of lanes, and what the policy blake3_128 makes of it.

#include "tensorhub/types/blake3.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "tensorhub/policy/integrity/blake3_128.hpp"

using namespace tensorhub;
using namespace tensorhub::detail;

namespace {

struct known_values {
  std::size_t length;
  const char* hash;
  const char* keyed_hash;
  const char* derived_key;
};

/// Of bytes 0, 1, ... 250, 0, 1, ...: the inputs, the key and the context of the official test vectors (file
/// test_vectors/test_vectors.json of https://github.com/BLAKE3-team/BLAKE3) at more lengths, made with the
/// package blake3 1.0 of PyPI, which is the authors' own implementation.
constexpr known_values known[] = {
    {0, "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262",
     "92b2b75604ed3c761f9d6f62392c8a9227ad0ea3f09573e783f1498a4ed60d26",
     "2cc39783c223154fea8dfb7c1b1660f2ac2dcbd1c1de8277b0b0dd39b7e50d7d"},
    {1, "2d3adedff11b61f14c886e35afa036736dcd87a74d27b5c1510225d0f592e213",
     "6d7878dfff2f485635d39013278ae14f1454b8c0a3a2d34bc1ab38228a80c95b",
     "b3e2e340a117a499c6cf2398a19ee0d29cca2bb7404c73063382693bf66cb06c"},
    {63, "e9bc37a594daad83be9470df7f7b3798297c3d834ce80ba85d6e207627b7db7b",
     "bb1eb5d4afa793c1ebdd9fb08def6c36d10096986ae0cfe148cd101170ce37ae",
     "b6451e30b953c206e34644c6803724e9d2725e0893039cfc49584f991f451af3"},
    {64, "4eed7141ea4a5cd4b788606bd23f46e212af9cacebacdc7d1f4c6dc7f2511b98",
     "ba8ced36f327700d213f120b1a207a3b8c04330528586f414d09f2f7d9ccb7e6",
     "a5c4a7053fa86b64746d4bb688d06ad1f02a18fce9afd3e818fefaa7126bf73e"},
    {65, "de1e5fa0be70df6d2be8fffd0e99ceaa8eb6e8c93a63f2d8d1c30ecb6b263dee",
     "c0a4edefa2d2accb9277c371ac12fcdbb52988a86edc54f0716e1591b4326e72",
     "51fd05c3c1cfbc8ed67d139ad76f5cf8236cd2acd26627a30c104dfd9d3ff8a8"},
    {127, "d81293fda863f008c09e92fc382a81f5a0b4a1251cba1634016a0f86a6bd640d",
     "c64200ae7dfaf35577ac5a9521c47863fb71514a3bcad18819218b818de85818",
     "c91c090ceee3a3ac81902da31838012625bbcd73fcb92e7d7e56f78deba4f0c3"},
    {128, "f17e570564b26578c33bb7f44643f539624b05df1a76c81f30acd548c44b45ef",
     "b04fe15577457267ff3b6f3c947d93be581e7e3a4b018679125eaf86f6a628ec",
     "81720f34452f58a0120a58b6b4608384b5c51d11f39ce97161a0c0e442ca0225"},
    {129, "683aaae9f3c5ba37eaaf072aed0f9e30bac0865137bae68b1fde4ca2aebdcb12",
     "d4a64dae6cdccbac1e5287f54f17c5f985105457c1a2ec1878ebd4b57e20d38f",
     "938d2d4435be30eafdbb2b7031f7857c98b04881227391dc40db3c7b21f41fc1"},
    {1023, "10108970eeda3eb932baac1428c7a2163b0e924c9a9e25b35bba72b28f70bd11",
     "c951ecdf03288d0fcc96ee3413563d8a6d3589547f2c2fb36d9786470f1b9d6e",
     "74a16c1c3d44368a86e1ca6df64be6a2f64cce8f09220787450722d85725dea5"},
    {1024, "42214739f095a406f3fc83deb889744ac00df831c10daa55189b5d121c855af7",
     "75c46f6f3d9eb4f55ecaaee480db732e6c2105546f1e675003687c31719c7ba4",
     "7356cd7720d5b66b6d0697eb3177d9f8d73a4a5c5e968896eb6a689684302706"},
    {1025, "d00278ae47eb27b34faecf67b4fe263f82d5412916c1ffd97c8cb7fb814b8444",
     "357dc55de0c7e382c900fd6e320acc04146be01db6a8ce7210b7189bd664ea69",
     "effaa245f065fbf82ac186839a249707c3bddf6d3fdda22d1b95a3c970379bcb"},
    {2048, "e776b6028c7cd22a4d0ba182a8bf62205d2ef576467e838ed6f2529b85fba24a",
     "879cf1fa2ea0e79126cb1063617a05b6ad9d0b696d0d757cf053439f60a99dd1",
     "7b2945cb4fef70885cc5d78a87bf6f6207dd901ff239201351ffac04e1088a23"},
    {2049, "5f4d72f40d7a5f82b15ca2b2e44b1de3c2ef86c426c95c1af0b6879522563030",
     "9f29700902f7c86e514ddc4df1e3049f258b2472b6dd5267f61bf13983b78dd5",
     "2ea477c5515cc3dd606512ee72bb3e0e758cfae7232826f35fb98ca1bcbdf273"},
    {3072, "b98cb0ff3623be03326b373de6b9095218513e64f1ee2edd2525c7ad1e5cffd2",
     "044a0e7b172a312dc02a4c9a818c036ffa2776368d7f528268d2e6b5df191770",
     "050df97f8c2ead654d9bb3ab8c9178edcd902a32f8495949feadcc1e0480c46b"},
    {3073, "7124b49501012f81cc7f11ca069ec9226cecb8a2c850cfe644e327d22d3e1cd3",
     "68dede9bef00ba89e43f31a6825f4cf433389fedae75c04ee9f0cf16a427c95a",
     "72613c9ec9ff7e40f8f5c173784c532ad852e827dba2bf85b2ab4b76f7079081"},
    {4096, "015094013f57a5277b59d8475c0501042c0b642e531b0a1c8f58d2163229e969",
     "befc660aea2f1718884cd8deb9902811d332f4fc4a38cf7c7300d597a081bfc0",
     "1e0d7f3db8c414c97c6307cbda6cd27ac3b030949da8e23be1a1a924ad2f25b9"},
    {4097, "9b4052b38f1c5fc8b1f9ff7ac7b27cd242487b3d890d15c96a1c25b8aa0fb995",
     "00df940cd36bb9fa7cbbc3556744e0dbc8191401afe70520ba292ee3ca80abbc",
     "aca51029626b55fda7117b42a7c211f8c6e9ba4fe5b7a8ca922f34299500ead8"},
    {5120, "9cadc15fed8b5d854562b26a9536d9707cadeda9b143978f319ab34230535833",
     "2c493e48e9b9bf31e0553a22b23503c0a3388f035cece68eb438d22fa1943e20",
     "7a7acac8a02adcf3038d74cdd1d34527de8a0fcc0ee3399d1262397ce5817f60"},
    {5121, "628bd2cb2004694adaab7bbd778a25df25c47b9d4155a55f8fbd79f2fe154cff",
     "6ccf1c34753e7a044db80798ecd0782a8f76f33563accaddbfbb2e0ea4b2d024",
     "b07f01e518e702f7ccb44a267e9e112d403a7b3f4883a47ffbed4b48339b3c34"},
    {6144, "3e2e5b74e048f3add6d21faab3f83aa44d3b2278afb83b80b3c35164ebeca205",
     "3d6b6d21281d0ade5b2b016ae4034c5dec10ca7e475f90f76eac7138e9bc8f1d",
     "2a95beae63ddce523762355cf4b9c1d8f131465780a391286a5d01abb5683a15"},
    {6145, "f1323a8631446cc50536a9f705ee5cb619424d46887f3c376c695b70e0f0507f",
     "9ac301e9e39e45e3250a7e3b3df701aa0fb6889fbd80eeecf28dbc6300fbc539",
     "379bcc61d0051dd489f686c13de00d5b14c505245103dc040d9e4dd1facab8e5"},
    {7168, "61da957ec2499a95d6b8023e2b0e604ec7f6b50e80a9678b89d2628e99ada77a",
     "b42835e40e9d4a7f42ad8cc04f85a963a76e18198377ed84adddeaecacc6f3fc",
     "11c37a112765370c94a51415d0d651190c288566e295d505defdad895dae2237"},
    {7169, "a003fc7a51754a9b3c7fae0367ab3d782dccf28855a03d435f8cfe74605e7817",
     "ed9b1a922c046fdb3d423ae34e143b05ca1bf28b710432857bf738bcedbfa511",
     "554b0a5efea9ef183f2f9b931b7497995d9eb26f5c5c6dad2b97d62fc5ac31d9"},
    {8192, "aae792484c8efe4f19e2ca7d371d8c467ffb10748d8a5a1ae579948f718a2a63",
     "dc9637c8845a770b4cbf76b8daec0eebf7dc2eac11498517f08d44c8fc00d58a",
     "ad01d7ae4ad059b0d33baa3c01319dcf8088094d0359e5fd45d6aeaa8b2d0c3d"},
    {8193, "bab6c09cb8ce8cf459261398d2e7aef35700bf488116ceb94a36d0f5f1b7bc3b",
     "954a2a75420c8d6547e3ba5b98d963e6fa6491addc8c023189cc519821b4a1f5",
     "af1e0346e389b17c23200270a64aa4e1ead98c61695d917de7d5b00491c9b0f1"},
    {16384, "f875d6646de28985646f34ee13be9a576fd515f76b5b0a26bb324735041ddde4",
     "9e9fc4eb7cf081ea7c47d1807790ed211bfec56aa25bb7037784c13c4b707b0d",
     "160e18b5878cd0df1c3af85eb25a0db5344d43a6fbd7a8ef4ed98d0714c3f7e1"},
    {17409, "50bc54238ac9271c9f3471f5206a04eb25d2e26b3214ed971cc55230b0d22864",
     "c7b5166cb456cb8a082b876006205ad15ab5f966ac2aab1f97a5a3840b90c767",
     "fd0f4cba5cc4aa6befa85fbc83e4eb20a1fc2f40b6a325a23d75ef7a6787e8c9"},
    {31744, "62b6960e1a44bcc1eb1a611a8d6235b6b4b78f32e7abc4fb4c6cdcce94895c47",
     "efa53b389ab67c593dba624d898d0f7353ab99e4ac9d42302ee64cbf9939a419",
     "39772aef80e0ebe60596361e45b061e8f417429d529171b6764468c22928e28e"},
    {102400, "bc3e3d41a1146b069abffad3c0d44860cf664390afce4d9661f7902e7943e085",
     "1c35d1a5811083fd7119f5d5d1ba027b4d01c0c6c49fb6ff2cf75393ea5db4a7",
     "4652cff7a3f385a6103b5c260fc1593e13c778dbe608efb092fe7ee69df6e9c6"},
    {262143, "4fbb10c248894f1b56ec8298555b96e597147150a061b1cf1af19f16dbc0557b",
     "0d4cbd1e5f3a11907e5cefbaf95d9d1e24405e0990277e26f82ca8f40e124b60",
     "04a2c94c1911fc40032fba27576792092a37c687effbead9f69129ab4d709d15"},
    {262144, "d57dc906e20d3fd326ffaa85535500486f46a0979f5a323f028dcabfd381fd4a",
     "78b2f14279f6b0c44ad68e55dbf038e8e5a7f5d09cd328e8b4a8ce0f6ea900a0",
     "4b45df9b591e73cb15ecec75b36a4c47f5152000ab96fbc921789aa9356a5c2a"},
    {262145, "531c319935cf78f34869faebd865e5748266b1799039103bfb851a680d9ed30c",
     "d90e1ca9e8c450f1937898a2a38d4fe2e6977cfa280db88213603eb9e61af23d",
     "9f8b6d2e7ad752e0da11a1214f10be54b812997913d2ed6d8f52cf4a3a681336"},
    {524289, "7978ac1ee80f7f7c115d25551f9c54cb3a2974cfcb8f5ab93de706350d143286",
     "84b36d3303ff255fe96b4c8f26f36492239542251242750b5bb8d08bf2e366b6",
     "16851f201059703fa2790970ed3e724b7f27e35210e6ca05666551c5bb5731a5"},
    {1048575, "f32b849d19684c18c138cf13e29dbadc776f4bc2a56b477680ef546b39ac3f71",
     "9a882c3ca50d4d7529330d37c5d037e0be43572958dae86c943dccbd537607bc",
     "3ea570679fe79ee4ee573c128123486d09e3e92091a616c02524921c75f1e8f1"},
    {1048576, "74cb441fd087764ca9c3694da742ebe30cbeb3060a17009ca81825c7a8d10343",
     "59b889b0821111fc4c249dc98b5435b767b44fb881542c61a85c1bebbffb2906",
     "8e1484f3996130ebdfd55a93b734f485e1590f3adbf57ffa02d2ae9207bf0293"},
    {1048577, "2f053cd7472cf0cd2f9adaf45c1180255b91b9a865404a63671a0ee5f792ed33",
     "a0c8e093827da3e07e22fa684eb60fc1600cf44c5036c80fb0b587d0f39ef421",
     "e00afb385303a8c7372a0f98b54d76771aaf9770ed42115e20f77d9cb7fc778f"},
    {3145729, "fd984eaa20053d346cc7c79a175338f91556e68b871d877b23568a4587d9875b",
     "1f944aba2f8d7f604824719fafa7001d2fb4ab3b2cc84639524fe2fefd8fa9c9",
     "64d645e1e4e4e96bebb094b4d50a749a717698e2e6138e1e016f03e3290334e0"},
};
constexpr std::string_view known_key = "whats the Elvish word for friend";
constexpr std::string_view known_context = "BLAKE3 2019-12-27 16:29:52 test vectors context";

[[nodiscard]] std::vector<std::byte> pattern(std::size_t length) {
  std::vector<std::byte> bytes(length);
  for (std::size_t i = 0; i < length; ++i) bytes[i] = static_cast<std::byte>(i % 251);
  return bytes;
}

[[nodiscard]] blake3_value the_key() {
  blake3_value key{};
  std::memcpy(key.words, known_key.data(), sizeof key.words);
  return key;
}

[[nodiscard]] std::string hex(const blake3_value& value) {
  std::string text;
  for (const std::uint32_t word : value.words) {
    for (unsigned nibble = 0; nibble < 8; ++nibble)
      text += "0123456789abcdef"[word >> (nibble / 2 * 8 + (nibble % 2 == 0 ? 4 : 0)) & 15u];
  }
  return text;
}

/// Those that this processor has.
[[nodiscard]] std::vector<blake3_lanes> every_width() {
  std::vector<blake3_lanes> widths;
  for (const auto lanes : {blake3_lanes::one, blake3_lanes::four, blake3_lanes::eight, blake3_lanes::sixteen})
    if (lanes <= blake3_most_lanes()) widths.push_back(lanes);
  if (widths.size() < 4) MESSAGE("only up to " << static_cast<unsigned>(widths.back()) << " lanes here");
  return widths;
}

[[nodiscard]] digest128 digest(std::uint64_t low, std::uint64_t high) {
  return {low, high};
}

}  // namespace

TEST_CASE("BLAKE3's test vectors, with every number of lanes") {
  for (const known_values& each : known) {
    CAPTURE(each.length);
    const std::vector<std::byte> bytes = pattern(each.length);
    for (const blake3_lanes lanes : every_width()) {
      CAPTURE(static_cast<unsigned>(lanes));
      CHECK(hex(blake3_hash(bytes, lanes)) == each.hash);
      CHECK(hex(blake3_keyed_hash(the_key(), bytes, lanes)) == each.keyed_hash);
      CHECK(hex(blake3_derive_key(known_context, bytes, lanes)) == each.derived_key);
    }
  }
}

TEST_CASE("bytes at any address have the same hash") {
  for (const known_values& each : known) {
    if (each.length > 102'400) continue;
    const std::vector<std::byte> bytes = pattern(each.length);
    for (const std::size_t shift : {1u, 3u, 8u, 17u, 63u}) {
      std::vector<std::byte> room(each.length + shift);
      std::copy(bytes.begin(), bytes.end(), room.begin() + static_cast<std::ptrdiff_t>(shift));
      for (const blake3_lanes lanes : every_width())
        CHECK(hex(blake3_hash(std::span{room}.subspan(shift), lanes)) == each.hash);
    }
  }
}

TEST_CASE("every number of chunks makes the same tree with every number of lanes") {
  const std::vector<std::byte> bytes = pattern(600 * 1024);
  const blake3_value key = the_key();
  for (std::size_t chunks = 1; chunks < 600; chunks += chunks < 70 ? 1 : 37) {
    const auto some = std::span{bytes}.first(chunks * 1024 - chunks % 3);
    CAPTURE(some.size());
    const blake3_value expected = blake3_keyed_hash(key, some, blake3_lanes::one);
    for (const blake3_lanes lanes : every_width()) CHECK(blake3_keyed_hash(key, some, lanes) == expected);
  }
}

TEST_CASE("blake3_128 makes the digests that its description says") {
  // By the same package: derive_key_context and key as the policy's header has them.
  const digest_seeds seeds = blake3_128::bind("policy", 7, {1, 2});
  CHECK(seeds == digest_seeds{0xf9b7da49983759b0ull, 0x25af6c0806b1e29full});
  const std::vector<std::byte> bytes = pattern(5'000);
  CHECK(blake3_128::chunk_digest(seeds.chunks, 3, bytes) ==
        digest(0x9cebf9065c6ec633ull, 0xab5ef6ca7ef4c577ull));
  const std::vector<digest128> table{{1, 2}, {3, 4}, {UINT64_MAX, 0}};
  CHECK(blake3_128::root(seeds.root, table) == digest(0xb70617d14110957dull, 0x2f150cbff113f252ull));
}
