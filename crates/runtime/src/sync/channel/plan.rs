//! Room for the operations of a select, whatever their types, without an allocation.
//!
//! Most operations are two or three words: the references to the channel and, for a send, to the
//! message, and a function that captures nothing or one reference. These lie in the [`Plan`]
//! itself; a larger one lies in a box, and the box in the plan. The first plans lie in the select
//! itself, the others in a vector.
//!
//! # Invariant
//! `steps` of a slot is null, and its room is empty; or it points to the [`Steps`] of the type of
//! the operation in the room, which the slot owns.

use super::case::Case;
use super::operation::Operation;
use core::marker::PhantomData;
use core::mem::{self, MaybeUninit, needs_drop};
use core::ptr;

/// Number of operations that lie in the select itself.
const IN_PLACE: usize = 4;

/// Words of an operation that lies in its plan.
const WORDS: usize = 3;

/// See the module documentation.
struct Slot {
    steps: *const (),
    room: [MaybeUninit<*const ()>; WORDS],
}

/// What is done with an operation of one type.
///
/// # Safety
/// To call any of them: the operation of the slot, or of the plan of that number, is of that type.
struct Steps<'a, R> {
    looks_ready: unsafe fn(&mut Slot) -> bool,
    /// See [`Plans::attempt`].
    attempt: unsafe fn(&mut Plans<'a, R>, usize) -> Option<R>,
    /// Takes the operation out of the slot.
    take_case: unsafe fn(&mut Slot) -> Box<dyn Case<R> + 'a>,
    /// Drops the operation in a slot whose `steps` is null already. `None` if that does nothing.
    discard: Option<unsafe fn(&mut Slot)>,
}

/// The operations of a select.
pub(super) struct Plans<'a, R> {
    /// The first operations; the others are empty.
    first: [Plan<'a, R>; IN_PLACE],
    /// The operations after these.
    more: Vec<Plan<'a, R>>,
    /// Number of operations that were added.
    count: usize,
}

impl<'a, R> Plans<'a, R> {
    pub(super) const fn new() -> Self {
        Self { first: [const { Plan::EMPTY }; IN_PLACE], more: Vec::new(), count: 0 }
    }

    /// Returns the number of operations that were added.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.count
    }

    #[inline]
    pub(super) fn add<O: Operation<'a, R> + 'a>(&mut self, operation: O) {
        let plan = Plan::new(operation);
        match self.first.get_mut(self.count) {
            // The place is empty; to drop that plan would be a call and keep the select in memory.
            Some(place) => mem::forget(mem::replace(place, plan)),
            None => self.more.push(plan),
        }
        self.count += 1;
    }

    #[inline]
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Plan<'a, R>> {
        self.first.iter_mut().chain(&mut self.more)
    }

    #[inline]
    pub(super) fn plan(&mut self, number: usize) -> &mut Plan<'a, R> {
        match number.checked_sub(IN_PLACE) {
            None => &mut self.first[number],
            Some(number) => &mut self.more[number],
        }
    }

    /// Exchanges the numbers `low` and `high` of two operations, of which `low` is not greater.
    pub(super) fn swap(&mut self, low: usize, high: usize) {
        match (low.checked_sub(IN_PLACE), high.checked_sub(IN_PLACE)) {
            (None, Some(high)) => mem::swap(&mut self.first[low], &mut self.more[high]),
            (Some(low), Some(high)) => self.more.swap(low, high),
            (_, None) => self.first.swap(low, high),
        }
    }

    /// Returns the numbers of the operations that look ready.
    #[inline]
    pub(super) fn ready(&mut self) -> impl Iterator<Item = usize> {
        let plans = self.iter_mut().enumerate();
        plans.filter_map(|(number, plan)| plan.looks_ready().then_some(number))
    }

    /// Completes operation `number` if that is possible now: then drops all other operations, and
    /// calls the user's function after that. No operation is left then, also if the function
    /// panics.
    #[inline]
    pub(super) fn attempt(&mut self, number: usize) -> Option<R> {
        let attempt = self.plan(number).steps()?.attempt;
        // SAFETY: by the invariant.
        unsafe { attempt(self, number) }
    }

    /// Drops all operations.
    #[inline]
    fn clear(&mut self) {
        self.first.iter_mut().for_each(Plan::clear);
        self.more.clear();
    }
}

/// An operation of a select, or none.
pub(super) struct Plan<'a, R> {
    slot: Slot,
    operation: PhantomData<Box<dyn Case<R> + 'a>>,
}

impl<'a, R> Plan<'a, R> {
    /// No operation.
    const EMPTY: Self = Self {
        slot: Slot { steps: ptr::null(), room: [MaybeUninit::uninit(); WORDS] },
        operation: PhantomData,
    };

    #[inline]
    fn new<O: Operation<'a, R> + 'a>(operation: O) -> Self {
        if fits::<O>() { Self::of(operation) } else { Self::of(Box::new(operation)) }
    }

    #[inline]
    fn of<O: Operation<'a, R>>(operation: O) -> Self {
        assert!(fits::<O>(), "a box fits");
        let mut plan = Self::EMPTY;
        // SAFETY: the room has the operation's size and alignment at least.
        unsafe { plan.slot.room.as_mut_ptr().cast::<O>().write(operation) };
        plan.slot.steps = ptr::from_ref(Of::<'a, R, O>::steps()).cast();
        plan
    }

    #[inline]
    fn steps(&self) -> Option<&Steps<'a, R>> {
        // SAFETY: null, or set in `of`, to a constant of this type.
        unsafe { self.slot.steps.cast::<Steps<'a, R>>().as_ref() }
    }

    /// Returns whether there is an operation that may be completed now, without locking its
    /// channel.
    #[inline]
    pub(super) fn looks_ready(&mut self) -> bool {
        let Some(looks_ready) = self.steps().map(|steps| steps.looks_ready) else { return false };
        // SAFETY: by the invariant.
        unsafe { looks_ready(&mut self.slot) }
    }

    /// Takes the operation out, as one that can wait; `None` if there is no operation.
    pub(super) fn take_case(&mut self) -> Option<Box<dyn Case<R> + 'a>> {
        let take_case = self.steps()?.take_case;
        // SAFETY: by the invariant.
        Some(unsafe { take_case(&mut self.slot) })
    }

    /// Drops the operation, if there is one.
    #[inline]
    fn clear(&mut self) {
        let discard = self.steps().and_then(|steps| steps.discard);
        self.slot.steps = ptr::null();
        if let Some(discard) = discard {
            // SAFETY: by the invariant, which held until the line before.
            unsafe { discard(&mut self.slot) };
        }
    }
}

impl<R> Drop for Plan<'_, R> {
    #[inline]
    fn drop(&mut self) {
        self.clear();
    }
}

/// Returns whether operations of this type lie in their plans.
const fn fits<O>() -> bool {
    size_of::<O>() <= size_of::<[*const (); WORDS]>() && align_of::<O>() <= align_of::<*const ()>()
}

/// The steps of operations of type `O`.
struct Of<'a, R, O>(PhantomData<(Box<dyn Case<R> + 'a>, O)>);

impl<'a, R, O: Operation<'a, R>> Of<'a, R, O> {
    const STEPS: Steps<'a, R> = Steps {
        looks_ready: Self::looks_ready,
        attempt: Self::attempt,
        take_case: Self::take_case,
        discard: if needs_drop::<O>() { Some(Self::discard) } else { None },
    };

    /// Returns the steps, at an address that is valid as long as the process runs: the compiler
    /// rejects a reference to a temporary here.
    const fn steps<'x>() -> &'x Steps<'a, R> {
        &Self::STEPS
    }

    /// # Safety
    /// The slot's operation is an `O`.
    #[inline]
    unsafe fn looks_ready(slot: &mut Slot) -> bool {
        // From a `&mut`: the user's function may capture a `Cell`.
        // SAFETY: by the caller's contract.
        unsafe { &*slot.room.as_mut_ptr().cast::<O>() }.looks_ready()
    }

    /// # Safety
    /// The operation of that number is an `O`.
    #[inline]
    unsafe fn attempt(plans: &mut Plans<'a, R>, number: usize) -> Option<R> {
        let slot = &mut plans.plan(number).slot;
        let operation = slot.room.as_mut_ptr().cast::<O>();
        // SAFETY: by the caller's contract.
        let outcome = unsafe { &*operation }.attempt()?;
        // SAFETY: as above. The slot is empty from here on.
        let operation = unsafe { operation.read() };
        slot.steps = ptr::null();
        plans.clear();
        Some(operation.finish(outcome))
    }

    /// # Safety
    /// As [`looks_ready`](Self::looks_ready).
    unsafe fn take_case(slot: &mut Slot) -> Box<dyn Case<R> + 'a> {
        // SAFETY: by the caller's contract. The slot is empty from here on.
        let operation = unsafe { slot.room.as_mut_ptr().cast::<O>().read() };
        slot.steps = ptr::null();
        operation.into_case()
    }

    /// # Safety
    /// As [`looks_ready`](Self::looks_ready), and the caller has emptied the rest of the slot.
    unsafe fn discard(slot: &mut Slot) {
        // SAFETY: by the caller's contract.
        unsafe { slot.room.as_mut_ptr().cast::<O>().drop_in_place() };
    }
}

impl<'a, R, O: Operation<'a, R>> Operation<'a, R> for Box<O> {
    type Outcome = O::Outcome;

    fn looks_ready(&self) -> bool {
        (**self).looks_ready()
    }

    fn attempt(&self) -> Option<Self::Outcome> {
        (**self).attempt()
    }

    fn finish(self, outcome: Self::Outcome) -> R {
        (*self).finish(outcome)
    }

    fn into_case(self) -> Box<dyn Case<R> + 'a> {
        (*self).into_case()
    }
}
