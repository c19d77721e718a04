//! Limits the connections of each user's clients that are not registered runtimes yet.
//!
//! Pure: no descriptors, no clock. Subordinate ids (subuid(5)) count for their owner. There is a
//! limit for all users without rights together, too.

use crate::authority::MAX_CONNECTIONS;

/// Maximum number of such connections of one user that is neither root nor the IOKernel's own,
/// unless a grant says otherwise.
pub(super) const PER_USER: usize = 32;
/// Number of such connections that only root and the IOKernel's own user get.
const RESERVED: usize = 64;
/// Maximum number of connections that are not registered runtimes, captures or traces.
const MAX_STRANGERS: usize = MAX_CONNECTIONS as usize + RESERVED;

/// A client that connects.
#[derive(Debug, Clone, Copy)]
pub(super) struct Client {
    /// `None` for root and the IOKernel's own.
    pub(super) user: Option<u32>,
    /// Maximum number of connections of its user.
    pub(super) most: usize,
    /// Programs that register again in a takeover, of its user and in all: they connect at once.
    pub(super) expected: (usize, usize),
}

/// Returns whether a client gets a connection; `connected` are the users of the present ones. Some
/// more sockets, of users without rights, are still being closed: `closing` is their number.
pub(super) fn have_room(
    Client { user, most, expected }: Client,
    connected: impl Iterator<Item = Option<u32>>,
    closing: usize,
) -> bool {
    let (most, strangers) = (most + expected.0, MAX_STRANGERS + expected.1);
    let (mut all, mut others, mut own) = (closing, closing, 0);
    for other in connected {
        all += 1;
        others += usize::from(other.is_some());
        own += usize::from(other == user);
    }
    all < strangers && (user.is_none() || (own < most && others < strangers - RESERVED))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: u32 = 100;

    /// Number of connections that one more client after the other of these users gets.
    fn admitted(users: impl Iterator<Item = u32>, connected: &mut Vec<Option<u32>>, closing: usize) -> usize {
        admitted_of((0, 0), users, connected, closing)
    }

    fn admitted_of(
        expected: (usize, usize),
        users: impl Iterator<Item = u32>,
        connected: &mut Vec<Option<u32>>,
        closing: usize,
    ) -> usize {
        let before = connected.len();
        for uid in users {
            let user = (uid != 0 && uid != OURS).then_some(uid);
            let client = Client { user, most: PER_USER, expected };
            if have_room(client, connected.iter().copied(), closing) {
                connected.push(user);
            }
        }
        connected.len() - before
    }

    #[test]
    fn one_user_leaves_room_for_others_and_all_users_for_root_and_the_iokernels_own() {
        let mut connected = Vec::new();
        assert_eq!(admitted((0..300).map(|_| 1), &mut connected, 0), PER_USER);
        assert_eq!(admitted((2..1000).filter(|&uid| uid != OURS), &mut connected, 0), 192 - PER_USER);
        assert_eq!(admitted((0..300).map(|n| (n % 2) * OURS), &mut connected, 0), RESERVED);
        assert_eq!(connected.len(), MAX_STRANGERS);
    }

    #[test]
    fn programs_that_come_back_have_room_besides() {
        let mut connected = Vec::new();
        assert_eq!(admitted_of((70, 300), (0..500).map(|_| 1), &mut connected, 0), PER_USER + 70);
        assert_eq!(admitted_of((0, 300), (2..1000).filter(|&uid| uid != OURS), &mut connected, 0), 390);
    }

    #[test]
    fn sockets_that_are_long_in_closing_count_for_users_without_rights() {
        let mut connected = Vec::new();
        assert_eq!(admitted((0..300).map(|_| 1), &mut connected, 190), 2);
        assert_eq!(admitted((0..300).map(|_| OURS), &mut connected, 190), 64);
    }
}
