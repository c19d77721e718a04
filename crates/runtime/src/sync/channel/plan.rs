//! Room for one operation of a select, whatever its type, without an allocation.
//!
//! Most operations are two or three words: the references to the channel and, for a send, to the
//! message, and a function that captures nothing or one reference. These lie in the [`Plan`]
//! itself; a larger one lies in a box, and the box in the plan.
//!
//! # Invariant
//! `steps` of a slot is null, and its room is empty; or it points to the [`Steps`] of the type of
//! the operation in the room, which the slot owns.

use super::case::Case;
use super::operation::Operation;
use core::marker::PhantomData;
use core::mem::{MaybeUninit, needs_drop};
use core::ptr;

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
/// To call any of them: the slot's operation is of that type.
struct Steps<'a, R> {
    looks_ready: unsafe fn(&Slot) -> bool,
    /// Completes the operation if that is possible now, which empties the slot.
    attempt: unsafe fn(&mut Slot) -> Option<R>,
    /// Takes the operation out of the slot.
    take_case: unsafe fn(&mut Slot) -> Box<dyn Case<R> + 'a>,
    /// Drops the operation in a slot that is not used again. `None` if that does nothing.
    discard: Option<unsafe fn(&mut Slot)>,
}

/// An operation of a select, or none.
pub(super) struct Plan<'a, R> {
    slot: Slot,
    operation: PhantomData<Box<dyn Case<R> + 'a>>,
}

impl<'a, R> Plan<'a, R> {
    /// No operation.
    pub(super) const EMPTY: Self = Self {
        slot: Slot { steps: ptr::null(), room: [MaybeUninit::uninit(); WORDS] },
        operation: PhantomData,
    };

    #[inline]
    pub(super) fn new<O: Operation<'a, R> + 'a>(operation: O) -> Self {
        if fits::<O>() { Self::of(operation) } else { Self::of(Box::new(operation)) }
    }

    #[inline]
    fn of<O: Operation<'a, R>>(operation: O) -> Self {
        assert!(fits::<O>(), "a box fits");
        let mut plan = Self::EMPTY;
        // SAFETY: the room has the operation's size and alignment at least.
        unsafe { plan.slot.room.as_mut_ptr().cast::<O>().write(operation) };
        plan.slot.steps = ptr::from_ref(&Of::<'a, R, O>::STEPS).cast();
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
    pub(super) fn looks_ready(&self) -> bool {
        // SAFETY: by the invariant.
        self.steps().is_some_and(|steps| unsafe { (steps.looks_ready)(&self.slot) })
    }

    /// Completes the operation if there is one and that is possible now. The plan is empty then,
    /// also if the user's function panics.
    #[inline]
    pub(super) fn attempt(&mut self) -> Option<R> {
        let attempt = self.steps()?.attempt;
        // SAFETY: by the invariant.
        unsafe { attempt(&mut self.slot) }
    }

    /// Takes the operation out, as one that can wait; `None` if there is no operation.
    pub(super) fn take_case(&mut self) -> Option<Box<dyn Case<R> + 'a>> {
        let take_case = self.steps()?.take_case;
        // SAFETY: by the invariant.
        Some(unsafe { take_case(&mut self.slot) })
    }
}

impl<R> Drop for Plan<'_, R> {
    #[inline]
    fn drop(&mut self) {
        if let Some(discard) = self.steps().and_then(|steps| steps.discard) {
            // SAFETY: by the invariant; the plan is not used again.
            unsafe { discard(&mut self.slot) };
        }
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

    /// # Safety
    /// The slot's operation is an `O`.
    #[inline]
    unsafe fn looks_ready(slot: &Slot) -> bool {
        // SAFETY: by the caller's contract.
        unsafe { &*slot.room.as_ptr().cast::<O>() }.looks_ready()
    }

    /// # Safety
    /// As [`looks_ready`](Self::looks_ready).
    #[inline]
    unsafe fn attempt(slot: &mut Slot) -> Option<R> {
        let operation = slot.room.as_ptr().cast::<O>();
        // SAFETY: by the caller's contract.
        let outcome = unsafe { &*operation }.attempt()?;
        // SAFETY: as above. The slot is empty from here on.
        let operation = unsafe { operation.read() };
        slot.steps = ptr::null();
        Some(operation.finish(outcome))
    }

    /// # Safety
    /// As [`looks_ready`](Self::looks_ready).
    unsafe fn take_case(slot: &mut Slot) -> Box<dyn Case<R> + 'a> {
        // SAFETY: by the caller's contract. The slot is empty from here on.
        let operation = unsafe { slot.room.as_ptr().cast::<O>().read() };
        slot.steps = ptr::null();
        operation.into_case()
    }

    /// # Safety
    /// As [`looks_ready`](Self::looks_ready); the slot is not used again.
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
