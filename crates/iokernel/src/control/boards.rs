//! The boards of users: where kthreads of one user's programs wake each other
//! ([`tailwater_shm::board`]).
//!
//! One for each user. What programs do to sleepers at a board, they can only do to programs of
//! their own user, which as a rule they could end as well.

use std::collections::HashMap;
use std::sync::Arc;

use rustix::fd::OwnedFd;
use tailwater_shm::board;

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct Boards {
    files: HashMap<u32, Arc<OwnedFd>>,
}

impl Boards {
    /// Returns the board of `uid`, and forgets those of users without a program; `has_program` says
    /// which have one. `None` without a board: then the IOKernel itself wakes the kthreads of that
    /// user, which takes longer.
    pub(super) fn of(&mut self, uid: u32, has_program: impl Fn(u32) -> bool) -> Option<Arc<OwnedFd>> {
        self.files.retain(|&user, _| user == uid || has_program(user));
        if let Some(file) = self.files.get(&uid) {
            return Some(Arc::clone(file));
        }
        let made = board::create();
        if let Err(error) = &made {
            tracing::warn!(user = uid, %error, "the IOKernel wakes the kthreads of this user itself, which takes longer");
        }
        let file = Arc::new(made.ok().flatten()?);
        self.files.insert(uid, Arc::clone(&file));
        Some(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_of_one_user_share_a_board_which_goes_with_the_last() {
        let mut boards = Boards::default();
        let Some(first) = boards.of(1, |_| false) else { return eprintln!("skipped: Linux before 5.1") };
        assert!(Arc::ptr_eq(&first, &boards.of(1, |_| false).unwrap()));
        let other = boards.of(2, |user| user == 1).unwrap();
        assert!(!Arc::ptr_eq(&first, &other));
        assert!(Arc::ptr_eq(&first, &boards.of(1, |_| true).unwrap()));
        boards.of(2, |_| false).unwrap();
        assert!(!Arc::ptr_eq(&first, &boards.of(1, |_| true).unwrap()));
    }
}
