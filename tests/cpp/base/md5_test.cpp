// The test suite of RFC 1321, whole and in pieces.
#include "base/md5.h"

#include <gtest/gtest.h>

#include <string>

namespace trainmon {
namespace {

std::string md5(std::string_view text) {
  Md5 md5;
  md5.add(text);
  return md5.finish();
}

TEST(Md5, GivesTheDigestsOfItsRfc) {
  EXPECT_EQ(md5(""), "d41d8cd98f00b204e9800998ecf8427e");
  EXPECT_EQ(md5("a"), "0cc175b9c0f1b6a831c399e269772661");
  EXPECT_EQ(md5("abc"), "900150983cd24fb0d6963f7d28e17f72");
  EXPECT_EQ(md5("message digest"), "f96b697d7cb7938d525a2f31aaf161d0");
  EXPECT_EQ(md5("abcdefghijklmnopqrstuvwxyz"), "c3fcd3d76192e4007dfb496cca67e13b");
  EXPECT_EQ(md5("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"),
            "d174ab98d277d9f5a5611c2c9f419d9f");
  EXPECT_EQ(md5("12345678901234567890123456789012345678901234567890123456789012345678901234567890"),
            "57edf4a22be3c955ac49da2e2107b67a");
}

TEST(Md5, PiecesGiveWhatTheWholeGives) {
  std::string text;
  for (int i = 0; i < 200; ++i) text += static_cast<char>(i * 7);
  for (std::size_t n = 0; n <= text.size(); ++n) {
    const std::string whole = md5(std::string_view(text).substr(0, n));
    for (std::size_t cut = 0; cut <= n; cut += 13) {
      Md5 pieces;
      pieces.add(std::string_view(text).substr(0, cut));
      pieces.add(std::string_view(text).substr(cut, n - cut));
      ASSERT_EQ(pieces.finish(), whole) << n << " cut at " << cut;
    }
  }
}

}  // namespace
}  // namespace trainmon
