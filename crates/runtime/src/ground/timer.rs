//! Timers of one kthread: a 4-ary heap of nodes that live on their waiters' stacks.
//!
//! A node records its place in the heap, so a wait that ends early takes its timer out at once: a
//! server whose requests all carry a 30 s timeout does not pile up 30 s of dead entries. Four
//! children per node halve the depth of a binary heap: a million timers are ten levels.
//!
//! The heap is locked by its kthread's lock. [`fire`](TimerNode::new) is called under it and must
//! not take it again.

use core::cell::Cell;
use core::ptr::NonNull;
use tailwater_shm::Cycles;

const CHILDREN: usize = 4;
const NOWHERE: usize = usize::MAX;

/// One timer. Must not move or die while it is in a heap.
#[derive(Debug)]
pub struct TimerNode {
    deadline: Cell<Cycles>,
    position: Cell<usize>,
    fire: unsafe fn(NonNull<TimerNode>),
}

impl TimerNode {
    /// Returns a timer in no heap. `fire` is called once when it is due, under the heap's lock,
    /// after the node has left the heap; its contract is that the node it gets was alive in the
    /// heap.
    pub fn new(fire: unsafe fn(NonNull<Self>)) -> Self {
        Self { deadline: Cell::new(0), position: Cell::new(NOWHERE), fire }
    }
}

/// See the module documentation.
#[derive(Debug, Default)]
pub struct TimerHeap {
    entries: Vec<(Cycles, NonNull<TimerNode>)>,
}

// SAFETY: nodes in the heap are used under the heap's lock only.
unsafe impl Send for TimerHeap {}

impl TimerHeap {
    /// Returns an empty heap.
    pub const fn new() -> Self {
        Self { entries: Vec::new() }
    }

    /// Returns when the earliest timer is due; `u64::MAX` if there is none.
    #[inline]
    pub fn next(&self) -> Cycles {
        self.entries.first().map_or(Cycles::MAX, |e| e.0)
    }

    /// Adds `node`.
    ///
    /// # Safety
    /// The node is in no heap, and neither moves nor dies before it has fired or been
    /// [removed](Self::remove) from this one.
    pub unsafe fn insert(&mut self, node: &TimerNode, deadline: Cycles) {
        debug_assert_eq!(node.position.get(), NOWHERE);
        node.deadline.set(deadline);
        self.entries.push((deadline, NonNull::from(node)));
        self.sift_up(self.entries.len() - 1);
    }

    /// Takes `node` out; false if it has fired already.
    ///
    /// # Safety
    /// The node is in this heap, or in none.
    pub unsafe fn remove(&mut self, node: &TimerNode) -> bool {
        let position = node.position.get();
        if position == NOWHERE {
            return false;
        }
        debug_assert!(core::ptr::eq(self.entries[position].1.as_ptr(), node));
        self.remove_at(position);
        true
    }

    /// Fires the timers due at `now`, at most `limit`; returns how many.
    pub fn fire_due(&mut self, now: Cycles, limit: usize) -> usize {
        let mut fired = 0;
        while fired < limit && self.next() <= now {
            let node = self.entries[0].1;
            self.remove_at(0);
            // SAFETY: the node was alive while in the heap (contract of `insert`), and its owner
            // takes the lock that `&mut self` implies before it lets the node die.
            unsafe { (node.as_ref().fire)(node) };
            fired += 1;
        }
        fired
    }

    fn remove_at(&mut self, position: usize) {
        let (_, node) = self.entries.swap_remove(position);
        // SAFETY: nodes in the heap are alive.
        unsafe { node.as_ref() }.position.set(NOWHERE);
        if position < self.entries.len() {
            self.place(position);
            self.sift_up(position);
            self.sift_down(position);
        }
    }

    fn place(&self, position: usize) {
        // SAFETY: nodes in the heap are alive, and used only under the lock that `&self` implies.
        unsafe { self.entries[position].1.as_ref() }.position.set(position);
    }

    fn sift_up(&mut self, mut position: usize) {
        while position > 0 {
            let parent = (position - 1) / CHILDREN;
            if self.entries[parent].0 <= self.entries[position].0 {
                break;
            }
            self.entries.swap(parent, position);
            self.place(position);
            position = parent;
        }
        self.place(position);
    }

    fn sift_down(&mut self, mut position: usize) {
        loop {
            let first = position * CHILDREN + 1;
            let children = first..(first + CHILDREN).min(self.entries.len());
            let Some(least) = children.min_by_key(|&c| self.entries[c].0) else { break };
            if self.entries[position].0 <= self.entries[least].0 {
                break;
            }
            self.entries.swap(position, least);
            self.place(position);
            position = least;
        }
        self.place(position);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cell::RefCell;

    thread_local! {
        static FIRED: RefCell<Vec<Cycles>> = const { RefCell::new(Vec::new()) };
    }

    unsafe fn record(node: NonNull<TimerNode>) {
        // SAFETY: the heap passes a live node.
        FIRED.with_borrow_mut(|f| f.push(unsafe { node.as_ref() }.deadline.get()));
    }

    proptest! {
        #[test]
        fn timers_fire_in_order_unless_removed(
            deadlines in prop::collection::vec(0..1000u64, 1..200),
            removals in prop::collection::vec(any::<prop::sample::Index>(), 0..100),
            steps in prop::collection::vec(1..300u64, 1..10),
        ) {
            FIRED.with_borrow_mut(Vec::clear);
            let nodes: Vec<TimerNode> = deadlines.iter().map(|_| TimerNode::new(record)).collect();
            let mut heap = TimerHeap::new();
            let mut expected = Vec::new();
            for (node, &deadline) in nodes.iter().zip(&deadlines) {
                // SAFETY: `nodes` outlives the heap's use of them.
                unsafe { heap.insert(node, deadline) };
                expected.push(deadline);
            }
            for index in removals {
                let i = index.index(nodes.len());
                // SAFETY: it is in this heap or in none.
                if unsafe { heap.remove(&nodes[i]) } {
                    let at = expected.iter().position(|&d| d == deadlines[i]).unwrap();
                    expected.swap_remove(at);
                }
            }
            expected.sort_unstable();
            prop_assert_eq!(heap.next(), expected.first().copied().unwrap_or(u64::MAX));
            let mut now = 0;
            for step in steps {
                now += step;
                heap.fire_due(now, usize::MAX);
                let due = expected.iter().filter(|&&d| d <= now).count();
                FIRED.with_borrow(|f| assert_eq!(f[..], expected[..due]));
            }
        }
    }
}
