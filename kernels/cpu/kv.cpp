#include "kv.h"

#include "attention_tile.h"
#include "kv_bf16.h"
#include "kv_int8.h"

namespace fewer {

namespace {

template <class Kv>
constexpr KvFormat FORMAT{Kv::block_bytes, Kv::query_bytes, Kv::store_key,
                          Kv::store_value, Kv::store_query, attend_rows<Kv>};

}  // namespace

const KvFormat& kv_format(int which) { return which == KV_INT8 ? FORMAT<Int8Kv> : FORMAT<Bf16Kv>; }

}  // namespace fewer
