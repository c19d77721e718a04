//! An intrusive, doubly linked list: its nodes lie elsewhere, mostly on the stacks of waiting
//! threads, and one that gives up leaves from the middle. Nothing allocates.
//!
//! Owns the links and knows nothing of waiting. A list lies inside the lock that guards it, and its
//! nodes are used under that lock. `WaitList` and `Queue` state what keeps their nodes alive.

use core::cell::Cell;
use core::ptr::{self, NonNull};

/// A node's place in a list.
#[derive(Debug)]
pub(crate) struct Links<N> {
    next: Cell<*const N>,
    previous: Cell<*const N>,
    linked: Cell<bool>,
}

impl<N> Links<N> {
    /// Returns the links of a node in no list.
    pub(crate) const fn new() -> Self {
        Self { next: Cell::new(ptr::null()), previous: Cell::new(ptr::null()), linked: Cell::new(false) }
    }

    /// Returns whether the node is in a list.
    pub(crate) fn are_linked(&self) -> bool {
        self.linked.get()
    }
}

/// A type that a list can hold.
pub(crate) trait Linked: Sized {
    /// Returns the node's place.
    fn links(&self) -> &Links<Self>;
}

/// Joins the neighbours of a linked node, previous and next, and returns them; `None` if it was out
/// already.
///
/// # Safety
/// The node's neighbours, where it has any, are alive.
#[inline]
unsafe fn unlink<N: Linked>(node: &N) -> Option<(*const N, *const N)> {
    let links = node.links();
    if !links.linked.replace(false) {
        return None;
    }
    let (previous, next) = (links.previous.get(), links.next.get());
    // SAFETY: by the caller's contract.
    unsafe {
        if let Some(previous) = previous.as_ref() {
            previous.links().next.set(next);
        }
        if let Some(next) = next.as_ref() {
            next.links().previous.set(previous);
        }
    }
    Some((previous, next))
}

/// Nodes, oldest first.
#[derive(Debug)]
pub(crate) struct List<N> {
    head: *const N,
    tail: *const N,
}

impl<N> List<N> {
    /// Returns an empty list.
    pub(crate) const fn new() -> Self {
        Self { head: ptr::null(), tail: ptr::null() }
    }

    /// Returns whether there is no node.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.head.is_null()
    }
}

impl<N: Linked> List<N> {
    /// Returns the oldest node.
    #[inline]
    pub(crate) fn front(&self) -> Option<&N> {
        // SAFETY: linked nodes are alive, by the contract of `push_back`.
        unsafe { self.head.as_ref() }
    }

    /// Returns all nodes, oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &N> {
        // SAFETY: as in `front`, for the neighbours of linked nodes.
        core::iter::successors(self.front(), |node: &&N| unsafe { node.links().next.get().as_ref() })
    }

    /// Appends `node`.
    ///
    /// # Safety
    /// The node is in no list, and neither moves nor dies before it has been
    /// [removed](Self::remove) from this one.
    #[inline]
    pub(crate) unsafe fn push_back(&mut self, node: &N) {
        let links = node.links();
        links.previous.set(self.tail);
        links.next.set(ptr::null());
        links.linked.set(true);
        // SAFETY: as in `front`.
        match unsafe { self.tail.as_ref() } {
            Some(tail) => tail.links().next.set(node),
            None => self.head = node,
        }
        self.tail = node;
    }

    /// Takes the oldest node out. The caller knows for how long it stays alive once the list's lock
    /// is free.
    #[inline]
    pub(crate) fn pop_front(&mut self) -> Option<NonNull<N>> {
        let node = NonNull::new(self.head.cast_mut())?;
        // SAFETY: as in `front`; it is the head of this list.
        unsafe { self.remove(node.as_ref()) };
        Some(node)
    }

    /// Takes `node` out; false if it was out already.
    ///
    /// # Safety
    /// The node is in this list, in a ring made of it, or in none.
    #[inline]
    pub(crate) unsafe fn remove(&mut self, node: &N) -> bool {
        // SAFETY: the neighbours of a linked node are linked, hence alive.
        let Some((previous, next)) = (unsafe { unlink(node) }) else { return false };
        if previous.is_null() {
            self.head = next;
        }
        if next.is_null() {
            self.tail = previous;
        }
        true
    }

    /// Moves all nodes to a ring that `anchor` closes, from which [`pop_ring`] takes them; true if
    /// there was any. Until then they leave by [`remove`](Self::remove) as before: nodes of a ring
    /// have neighbours on both sides, so the ends of the list stay as they are.
    ///
    /// # Safety
    /// `anchor` is in no list, and neither moves nor dies before the ring is empty.
    pub(crate) unsafe fn move_to_ring(&mut self, anchor: &N) -> bool {
        let (head, tail) = (
            core::mem::replace(&mut self.head, ptr::null()),
            core::mem::replace(&mut self.tail, ptr::null()),
        );
        // SAFETY: the ends of a list are linked, hence alive.
        let (Some(first), Some(last)) = (unsafe { head.as_ref() }, unsafe { tail.as_ref() }) else {
            return false;
        };
        first.links().previous.set(anchor);
        last.links().next.set(anchor);
        anchor.links().next.set(head);
        anchor.links().previous.set(tail);
        true
    }
}

/// Nodes in no order that matters, with one end: a pointer. Any node leaves as cheaply as from a
/// [`List`].
#[derive(Debug)]
pub(crate) struct Bag<N> {
    head: *const N,
}

impl<N> Bag<N> {
    /// Returns an empty bag.
    pub(crate) const fn new() -> Self {
        Self { head: ptr::null() }
    }

    /// Returns whether there is no node.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.head.is_null()
    }
}

impl<N: Linked> Bag<N> {
    /// Adds `node`.
    ///
    /// # Safety
    /// The node is in no list or bag, and neither moves nor dies before it has been
    /// [removed](Self::remove) from this one.
    pub(crate) unsafe fn push(&mut self, node: &N) {
        let links = node.links();
        links.previous.set(ptr::null());
        links.next.set(self.head);
        links.linked.set(true);
        // SAFETY: linked nodes are alive, by this function's contract.
        if let Some(head) = unsafe { self.head.as_ref() } {
            head.links().previous.set(node);
        }
        self.head = node;
    }

    /// Takes `node` out; false if it was out already.
    ///
    /// # Safety
    /// The node is in this bag or in none.
    pub(crate) unsafe fn remove(&mut self, node: &N) -> bool {
        // SAFETY: the neighbours of a linked node are linked, hence alive.
        let Some((previous, next)) = (unsafe { unlink(node) }) else { return false };
        if previous.is_null() {
            self.head = next;
        }
        true
    }

    /// Moves all nodes behind `anchor`, from which [`pop_behind`] takes them. Until then they leave
    /// by [`remove`](Self::remove) as before: each has a node before it, so the bag's head stays as
    /// it is.
    ///
    /// # Safety
    /// `anchor` is in no list or bag, and neither moves nor dies while nodes are behind it.
    pub(crate) unsafe fn move_behind(&mut self, anchor: &N) {
        let head = core::mem::replace(&mut self.head, ptr::null());
        anchor.links().next.set(head);
        // SAFETY: linked nodes are alive, by the contract of `push`.
        if let Some(first) = unsafe { head.as_ref() } {
            first.links().previous.set(anchor);
        }
    }

    /// Calls `visit` with each node, and takes out those for which it returns false. `visit` uses
    /// neither this bag nor, after it has returned false, the node.
    pub(crate) fn retain(&mut self, visit: impl Fn(NonNull<N>) -> bool) {
        let mut at = self.head;
        while let Some(node) = NonNull::new(at.cast_mut()) {
            // SAFETY: linked nodes are alive. The successor is read before the node may leave.
            at = unsafe { node.as_ref() }.links().next.get();
            if !visit(node) {
                // SAFETY: the node is in this bag, and alive: its owner needs the bag's lock, which
                // `&mut self` implies, to let it die.
                unsafe { self.remove(node.as_ref()) };
            }
        }
    }
}

/// Takes the oldest node out of the ring that `anchor` closes.
///
/// # Safety
/// The caller holds the lock of the list that the nodes came from.
pub(crate) unsafe fn pop_ring<N: Linked>(anchor: &N) -> Option<NonNull<N>> {
    let first = NonNull::new(anchor.links().next.get().cast_mut())?;
    if ptr::eq(first.as_ptr(), anchor) {
        return None;
    }
    // SAFETY: nodes of a ring are alive, by the contract of `push_back`. They have neighbours, so
    // an empty list stands for the one they came from.
    unsafe { List::new().remove(first.as_ref()) };
    Some(first)
}

/// Returns whether the ring that `anchor` closes has no node left, or `anchor` closes none.
///
/// # Safety
/// The caller holds the lock of the list that the nodes came from.
pub(crate) unsafe fn is_ring_empty<N: Linked>(anchor: &N) -> bool {
    let first = anchor.links().next.get();
    first.is_null() || ptr::eq(first, anchor)
}

/// Takes a node from behind `anchor`.
///
/// # Safety
/// The caller holds the lock of the bag that the nodes came from.
pub(crate) unsafe fn pop_behind<N: Linked>(anchor: &N) -> Option<NonNull<N>> {
    let first = NonNull::new(anchor.links().next.get().cast_mut())?;
    // SAFETY: linked nodes are alive, by the contract of `push`. This one has a node before it, so
    // an empty bag stands for the one it came from.
    unsafe { Bag::new().remove(first.as_ref()) };
    Some(first)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    struct Node {
        number: usize,
        links: Links<Node>,
    }

    impl Linked for Node {
        fn links(&self) -> &Links<Self> {
            &self.links
        }
    }

    #[test]
    fn nodes_behind_an_anchor_are_taken_or_leave() {
        let nodes: Vec<Node> = (0..4).map(|number| Node { number, links: Links::new() }).collect();
        let anchor = Node { number: usize::MAX, links: Links::new() };
        let mut bag = Bag::new();
        // SAFETY: `nodes` and `anchor` outlive the bag, and each node is in it or in none.
        unsafe {
            for node in &nodes[..3] {
                bag.push(node);
            }
            bag.move_behind(&anchor);
            bag.push(&nodes[3]);
            assert!(bag.remove(&nodes[2]) && bag.remove(&nodes[0]), "the first and the last");
            assert_eq!(pop_behind(&anchor).map(|node| node.as_ref().number), Some(1));
            assert!(pop_behind(&anchor).is_none());
            assert!(bag.remove(&nodes[3]) && bag.is_empty());
        }
    }

    proptest! {
        #[test]
        fn nodes_keep_their_order_whichever_leaves(
            steps in prop::collection::vec((0..3u8, any::<prop::sample::Index>()), 1..200),
        ) {
            let nodes: Vec<Node> = (0..20).map(|number| Node { number, links: Links::new() }).collect();
            let (mut list, mut model) = (List::new(), Vec::new());
            for (step, index) in steps {
                let node = &nodes[index.index(nodes.len())];
                let was_in = model.contains(&node.number);
                prop_assert_eq!(node.links.are_linked(), was_in);
                match step {
                    0 => {
                        // SAFETY: it is in the list, in its ring, or in none.
                        prop_assert_eq!(unsafe { list.remove(node) }, was_in);
                        model.retain(|&number| number != node.number);
                    }
                    1 => {
                        // SAFETY: `nodes` outlives the list.
                        let popped = list.pop_front().map(|node| unsafe { node.as_ref() }.number);
                        prop_assert_eq!(popped, model.first().copied());
                        model = model.split_off(popped.is_some().into());
                    }
                    _ if was_in => {}
                    _ => {
                        // SAFETY: it is in no list, and `nodes` outlives the list.
                        unsafe { list.push_back(node) };
                        model.push(node.number);
                    }
                }
                prop_assert_eq!(list.iter().map(|node| node.number).collect::<Vec<_>>(), model.clone());
                prop_assert_eq!(list.front().map(|node| node.number), model.first().copied());
                prop_assert_eq!(list.is_empty(), model.is_empty());
            }
        }

        #[test]
        fn a_bag_holds_what_was_put_in_and_not_taken_out(
            steps in prop::collection::vec((0..3u8, any::<prop::sample::Index>()), 1..200),
        ) {
            let nodes: Vec<Node> = (0..20).map(|number| Node { number, links: Links::new() }).collect();
            let (mut bag, mut model) = (Bag::new(), std::collections::BTreeSet::new());
            for (step, index) in steps {
                let node = &nodes[index.index(nodes.len())];
                let was_in = model.contains(&node.number);
                match step {
                    0 => {
                        // SAFETY: it is in the bag or in none.
                        prop_assert_eq!(unsafe { bag.remove(node) }, was_in);
                        model.remove(&node.number);
                    }
                    1 => {
                        let even = |number: usize| number.is_multiple_of(2);
                        // SAFETY: `nodes` outlives the bag.
                        bag.retain(|node| even(unsafe { node.as_ref() }.number));
                        model.retain(|&number| even(number));
                    }
                    _ if was_in => {}
                    _ => {
                        // SAFETY: it is in no list, and `nodes` outlives the bag.
                        unsafe { bag.push(node) };
                        model.insert(node.number);
                    }
                }
                let seen = std::cell::RefCell::new(std::collections::BTreeSet::new());
                bag.retain(|node| {
                    // SAFETY: as above.
                    seen.borrow_mut().insert(unsafe { node.as_ref() }.number)
                });
                prop_assert_eq!(seen.into_inner(), model.clone());
                prop_assert_eq!(bag.is_empty(), model.is_empty());
            }
        }

        #[test]
        fn a_ring_keeps_its_order_while_nodes_leave_and_others_come(
            steps in prop::collection::vec((0..4u8, any::<prop::sample::Index>()), 1..200),
        ) {
            let nodes: Vec<Node> = (0..20).map(|number| Node { number, links: Links::new() }).collect();
            let anchor = Node { number: usize::MAX, links: Links::new() };
            let (mut list, mut waiting, mut leaving) = (List::new(), Vec::new(), Vec::new());
            for (step, index) in steps {
                let node = &nodes[index.index(nodes.len())];
                let was_in = waiting.contains(&node.number) || leaving.contains(&node.number);
                match step {
                    0 => {
                        // SAFETY: it is in the list, in its ring, or in none.
                        prop_assert_eq!(unsafe { list.remove(node) }, was_in);
                        waiting.retain(|&number| number != node.number);
                        leaving.retain(|&number| number != node.number);
                    }
                    1 => {
                        // SAFETY: one thread; `nodes` outlives the ring.
                        let popped = unsafe { pop_ring(&anchor).map(|node| node.as_ref().number) };
                        prop_assert_eq!(popped, leaving.first().copied());
                        leaving = leaving.split_off(popped.is_some().into());
                        // SAFETY: as above.
                        prop_assert_eq!(unsafe { is_ring_empty(&anchor) }, leaving.is_empty());
                    }
                    2 if leaving.is_empty() => {
                        // SAFETY: `nodes` and `anchor` outlive list and ring.
                        prop_assert_eq!(unsafe { list.move_to_ring(&anchor) }, !waiting.is_empty());
                        leaving = core::mem::take(&mut waiting);
                    }
                    _ if was_in => {}
                    _ => {
                        // SAFETY: it is in no list, and `nodes` outlives the list.
                        unsafe { list.push_back(node) };
                        waiting.push(node.number);
                    }
                }
                prop_assert_eq!(list.iter().map(|node| node.number).collect::<Vec<_>>(), waiting.clone());
            }
        }
    }
}
