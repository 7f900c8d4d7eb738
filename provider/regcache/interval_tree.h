// SPDX-License-Identifier: GPL-2.0-or-later
//
// interval_tree.h: an intrusive set of address intervals that may overlap: insert, remove, and the two questions that
// matter about memory: does anything overlap this range, and does anything contain it. O(log n), no allocation, no lock.
//
// A treap ordered by first address; every node knows the largest last address below it. Bounds are inclusive, so the end of
// the address space needs no special case.
#pragma once

#include <cstdint>

namespace regcache {

struct Interval {
    uint64_t first = 0, last = 0;

    // The tree's own:
    Interval *left = nullptr, *right = nullptr;
    uint64_t max_last = 0;
    uint32_t priority = 0;
};

class IntervalTree {
  public:
    bool empty() const { return root_ == nullptr; }

    void insert(Interval *node) {
        // xorshift: the shape of the tree must not depend on the order of addresses; nothing more is asked of it
        seed_ ^= seed_ << 13;
        seed_ ^= seed_ >> 17;
        seed_ ^= seed_ << 5;
        node->priority = seed_;
        node->left = node->right = nullptr;
        node->max_last = node->last;
        root_ = insert_at(root_, node);
    }

    void remove(Interval *node) { root_ = remove_at(root_, node); }

    // Any interval that shares at least one address with [first, last]; nullptr if there is none.
    Interval *overlapping(uint64_t first, uint64_t last) const {
        Interval *node = root_;
        while (node) {
            if (node->left && node->left->max_last >= first) {
                // If nothing on the left overlaps although something there reaches `first`, all of it starts after `last`,
                // and so does everything to the right.
                node = node->left;
                continue;
            }
            if (node->first <= last && node->last >= first) return node;
            if (node->first > last) return nullptr;
            node = node->right;
        }
        return nullptr;
    }

    // An interval that contains [first, last] and that `accept` takes. Offers no more than `effort` of those that contain it:
    // this question is asked to save work, so it must not become work. Each costs O(log n): to the left of `first`, a subtree
    // that reaches `last` has one.
    template <typename Accept> Interval *containing(uint64_t first, uint64_t last, unsigned effort, Accept accept) const {
        return containing_at(root_, first, last, effort, accept);
    }

  private:
    static bool before(const Interval *a, const Interval *b) {
        return a->first != b->first ? a->first < b->first : reinterpret_cast<uintptr_t>(a) < reinterpret_cast<uintptr_t>(b);
    }

    static void update(Interval *node) {
        uint64_t most = node->last;
        if (node->left && node->left->max_last > most) most = node->left->max_last;
        if (node->right && node->right->max_last > most) most = node->right->max_last;
        node->max_last = most;
    }

    // Splits into what comes before `pivot` and the rest.
    static void split(Interval *tree, const Interval *pivot, Interval *&low, Interval *&high) {
        if (!tree) {
            low = high = nullptr;
        } else if (before(tree, pivot)) {
            split(tree->right, pivot, tree->right, high);
            update(tree);
            low = tree;
        } else {
            split(tree->left, pivot, low, tree->left);
            update(tree);
            high = tree;
        }
    }

    static Interval *merge(Interval *low, Interval *high) {
        if (!low) return high;
        if (!high) return low;
        if (low->priority > high->priority) {
            low->right = merge(low->right, high);
            update(low);
            return low;
        }
        high->left = merge(low, high->left);
        update(high);
        return high;
    }

    static Interval *insert_at(Interval *tree, Interval *node) {
        if (!tree) return node;
        if (node->priority > tree->priority) {
            split(tree, node, node->left, node->right);
            update(node);
            return node;
        }
        if (before(node, tree))
            tree->left = insert_at(tree->left, node);
        else
            tree->right = insert_at(tree->right, node);
        update(tree);
        return tree;
    }

    static Interval *remove_at(Interval *tree, Interval *node) {
        if (!tree) return nullptr;
        if (tree == node) return merge(tree->left, tree->right);
        if (before(node, tree))
            tree->left = remove_at(tree->left, node);
        else
            tree->right = remove_at(tree->right, node);
        update(tree);
        return tree;
    }

    template <typename Accept>
    static Interval *containing_at(Interval *tree, uint64_t first, uint64_t last, unsigned &effort, Accept accept) {
        while (tree && effort > 0 && tree->max_last >= last) {
            if (tree->first <= first) {
                if (tree->last >= last) {
                    if (accept(tree)) return tree;
                    --effort;
                }
                // Nearer starts lie to the right: the tightest fit first.
                if (Interval *found = containing_at(tree->right, first, last, effort, accept)) return found;
            }
            tree = tree->left;
        }
        return nullptr;
    }

    Interval *root_ = nullptr;
    uint32_t seed_ = 0x9E3779B9u;
};

} // namespace regcache
