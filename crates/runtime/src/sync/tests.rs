//! Every type that mirrors one of `std`'s has the auto traits of its model, and lacks those that
//! its model lacks.

use super::*;
use crate::thread;
use core::cell::Cell;
use core::fmt::{Debug, Display};
use core::panic::{RefUnwindSafe, UnwindSafe};
use std::rc::Rc;

/// Returns whether the type implements the trait: an inherent constant hides a trait's where its
/// bounds hold.
macro_rules! implements {
    ($type:ty: $trait:path) => {{
        #[allow(dead_code, reason = "hidden where the bound holds")]
        trait Otherwise {
            const ANSWER: bool = false;
        }
        impl<T: ?Sized> Otherwise for T {}
        struct Probe<T: ?Sized>(core::marker::PhantomData<T>);
        #[allow(dead_code, reason = "unused where the bound does not hold")]
        impl<T: ?Sized + $trait> Probe<T> {
            const ANSWER: bool = true;
        }
        <Probe<$type>>::ANSWER
    }};
}

/// Returns the auto traits of a type, by name.
macro_rules! auto_traits {
    ($type:ty) => {
        [
            ("Send", implements!($type: Send)),
            ("Sync", implements!($type: Sync)),
            ("UnwindSafe", implements!($type: UnwindSafe)),
            ("RefUnwindSafe", implements!($type: RefUnwindSafe)),
        ]
    };
}

macro_rules! assert_same {
    ($($ours:ty => $std:ty),+ $(,)?) => {
        $(assert_eq!(auto_traits!($ours), auto_traits!($std), "of {}", core::any::type_name::<$ours>());)+
    };
}

/// Compares all types that hold a `$T`.
macro_rules! assert_same_for {
    ($($T:ty),+ $(,)?) => {$(
        assert_same!(
            Mutex<$T> => std::sync::Mutex<$T>,
            MutexGuard<'static, $T> => std::sync::MutexGuard<'static, $T>,
            RwLock<$T> => std::sync::RwLock<$T>,
            RwLockReadGuard<'static, $T> => std::sync::RwLockReadGuard<'static, $T>,
            RwLockWriteGuard<'static, $T> => std::sync::RwLockWriteGuard<'static, $T>,
            OnceLock<$T> => std::sync::OnceLock<$T>,
            LazyLock<$T> => std::sync::LazyLock<$T>,
            LazyLock<u8, $T> => std::sync::LazyLock<u8, $T>,
            mpsc::Sender<$T> => std::sync::mpsc::Sender<$T>,
            mpsc::SyncSender<$T> => std::sync::mpsc::SyncSender<$T>,
            mpsc::Receiver<$T> => std::sync::mpsc::Receiver<$T>,
            mpsc::Iter<'static, $T> => std::sync::mpsc::Iter<'static, $T>,
            mpsc::TryIter<'static, $T> => std::sync::mpsc::TryIter<'static, $T>,
            mpsc::IntoIter<$T> => std::sync::mpsc::IntoIter<$T>,
            thread::JoinHandle<$T> => std::thread::JoinHandle<$T>,
            thread::ScopedJoinHandle<'static, $T> => std::thread::ScopedJoinHandle<'static, $T>,
        );
    )+};
}

#[test]
fn types_that_hold_a_value_have_the_auto_traits_of_their_models() {
    // Send and Sync; Send only; neither; Sync only; not unwind safe.
    assert_same_for!(u8, Cell<u8>, Rc<u8>, std::sync::MutexGuard<'static, u8>, &'static mut u8);
}

#[test]
fn other_types_have_the_auto_traits_of_their_models() {
    assert_same!(
        Barrier => std::sync::Barrier,
        BarrierWaitResult => std::sync::BarrierWaitResult,
        Condvar => std::sync::Condvar,
        WaitTimeoutResult => std::sync::WaitTimeoutResult,
        Once => std::sync::Once,
        OnceState => std::sync::OnceState,
        thread::Builder => std::thread::Builder,
        thread::Scope<'static, 'static> => std::thread::Scope<'static, 'static>,
        thread::Thread => std::thread::Thread,
        thread::ThreadId => std::thread::ThreadId,
    );
}

#[test]
fn locks_can_be_made_and_shown_as_std_s() {
    fn made<T: Default + From<u8> + Debug>() {}
    fn shown<T: Debug + Display>() {}
    made::<Mutex<u8>>();
    made::<RwLock<u8>>();
    made::<OnceLock<u8>>();
    shown::<MutexGuard<'_, u8>>();
    shown::<RwLockReadGuard<'_, u8>>();
    shown::<RwLockWriteGuard<'_, u8>>();
}

#[test]
fn a_mutex_takes_a_word_besides_its_list_of_waiters() {
    assert_eq!(size_of::<Mutex<u32>>(), size_of::<Condvar>() + 8);
}
