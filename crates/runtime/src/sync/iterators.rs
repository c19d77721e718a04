//! The iterators over the messages of a channel: one definition for the receivers of
//! [`channel`](super::channel) and of [`mpsc`](super::mpsc), whose types differ.

/// Defines `Iter`, `TryIter` and `IntoIter` of the type `Receiver` in scope. `$make` is the path
/// below `tailwater::sync` of the function that makes such a receiver.
macro_rules! iterators {
    ($make:literal) => {
        /// Iterator over the messages of a [`Receiver`], which waits for each; see
        /// [`Receiver::iter`].
        ///
        /// # Examples
        /// ```
        #[doc = concat!("let (sender, receiver) = tailwater::sync::", $make, "();")]
        /// sender.send(1).unwrap();
        /// drop(sender);
        /// assert_eq!(receiver.iter().collect::<Vec<_>>(), [1]);
        /// ```
        #[derive(Debug)]
        pub struct Iter<'a, T> {
            receiver: &'a Receiver<T>,
        }

        /// Iterator over the messages in the channel of a [`Receiver`], without waiting; see
        /// [`Receiver::try_iter`].
        ///
        /// # Examples
        /// ```
        #[doc = concat!("let (_sender, receiver) = tailwater::sync::", $make, "::<u8>();")]
        /// assert_eq!(receiver.try_iter().next(), None);
        /// ```
        #[derive(Debug)]
        pub struct TryIter<'a, T> {
            receiver: &'a Receiver<T>,
        }

        /// Iterator over the messages of a [`Receiver`], which it owns, waiting for each.
        ///
        /// # Examples
        /// ```
        #[doc = concat!("let (sender, receiver) = tailwater::sync::", $make, "();")]
        /// std::thread::spawn(move || (0..3).for_each(|n| sender.send(n).unwrap()));
        /// for (expected, n) in receiver.into_iter().enumerate() {
        ///     assert_eq!(expected, n);
        /// }
        /// ```
        #[derive(Debug)]
        pub struct IntoIter<T> {
            receiver: Receiver<T>,
        }

        impl<T> Iterator for Iter<'_, T> {
            type Item = T;
            fn next(&mut self) -> Option<T> {
                self.receiver.recv().ok()
            }
        }

        impl<T> core::iter::FusedIterator for Iter<'_, T> {}

        impl<T> Iterator for TryIter<'_, T> {
            type Item = T;
            fn next(&mut self) -> Option<T> {
                self.receiver.try_recv().ok()
            }
        }

        impl<T> Iterator for IntoIter<T> {
            type Item = T;
            fn next(&mut self) -> Option<T> {
                self.receiver.recv().ok()
            }
        }

        impl<T> core::iter::FusedIterator for IntoIter<T> {}

        impl<'a, T> IntoIterator for &'a Receiver<T> {
            type Item = T;
            type IntoIter = Iter<'a, T>;
            fn into_iter(self) -> Iter<'a, T> {
                self.iter()
            }
        }

        impl<T> IntoIterator for Receiver<T> {
            type Item = T;
            type IntoIter = IntoIter<T>;
            fn into_iter(self) -> IntoIter<T> {
                IntoIter { receiver: self }
            }
        }
    };
}

pub(super) use iterators;
