// A list of objects in the order in which they were added. An object has its own links (struct Item :
// ListLinks<Item>), so that adding it allocates nothing.
//
// Thread safety: none. The list points to its objects.
#pragma once

namespace kvcache {

template <typename Item>
struct ListLinks {
  Item* older = nullptr;
  Item* newer = nullptr;
  bool listed = false;
};

template <typename Item>
class LinkedList {
 public:
  bool empty() const { return oldest_ == nullptr; }
  Item* oldest() const { return oldest_; }

  // REQUIRES: the object is not in a list.
  void Add(Item& item) {
    item.older = newest_;
    item.newer = nullptr;
    item.listed = true;
    (newest_ != nullptr ? newest_->newer : oldest_) = &item;
    newest_ = &item;
  }
  // REQUIRES: the object is in this list.
  void Remove(Item& item) {
    (item.older != nullptr ? item.older->newer : oldest_) = item.newer;
    (item.newer != nullptr ? item.newer->older : newest_) = item.older;
    item.listed = false;
  }

 private:
  Item* oldest_ = nullptr;
  Item* newest_ = nullptr;
};

}  // namespace kvcache
