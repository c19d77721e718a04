//! Whose copy a backup has, and whose it takes instead.
//!
//! Owns the decision, which has no effect. A store begins empty in one process, and goes on in a
//! backup that is promoted with a complete copy of it. The number of these promotions is its
//! *generation*: of two processes that have the same store, the older generation is out of date.
//!
//! | a primary comes | while the backup has | then |
//! |---|---|---|
//! | with the same store, of an older generation | a copy, complete or not | [`Refused::Superseded`] |
//! | with the same store, of a newer generation | a copy, and its primary or none | welcome |
//! | again | its own copy | welcome |
//! | any other | another primary, connected | [`Refused::Taken`] |
//! | any other | a complete copy | [`Refused::Keeps`]: it may be all that is left of that store |
//! | any other | no copy, or an incomplete one | welcome |
//!
//! All of this is in memory: a backup that is started anew has nothing, and takes any primary.

/// Whose store it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    /// The process in which the store began.
    pub store: u64,
    /// Promotions since.
    pub generation: u64,
    /// The process that has it. Differs from process to process, and from start to start.
    pub primary: u64,
}

/// Why a primary is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// Another one is connected.
    Taken,
    /// Its store has a newer generation.
    Superseded,
    /// The copy of another store is complete.
    Keeps,
}

impl Origin {
    /// A store that begins empty.
    pub fn begin(primary: u64) -> Self {
        Self { store: primary, generation: 0, primary }
    }

    /// The same store in a process that was promoted.
    pub fn promoted(self, primary: u64) -> Self {
        Self { generation: self.generation.saturating_add(1), primary, ..self }
    }
}

/// Decides whether a backup takes a copy of `offered` in place of a copy of `has`.
pub fn decide(
    has: Option<Origin>,
    is_complete: bool,
    is_connected: bool,
    offered: Origin,
) -> Result<(), Refused> {
    let Some(has) = has else { return Ok(()) };
    let same_store = has.store == offered.store;
    if same_store && offered.generation < has.generation {
        Err(Refused::Superseded)
    } else if (same_store && offered.generation > has.generation) || has == offered {
        Ok(())
    } else if is_connected {
        Err(Refused::Taken)
    } else if is_complete {
        Err(Refused::Keeps)
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_complete_copy_gives_way_only_to_its_primary_and_to_promoted_ones() {
        let first = Origin::begin(1);
        let (promoted, twin) = (first.promoted(2), first.promoted(3));
        let stranger = Origin::begin(4);
        let later = promoted.promoted(5);
        for (has, is_complete, is_connected, offered, expected) in [
            (None, false, false, first, Ok(())),
            (None, false, false, later, Ok(())),
            (Some(first), true, false, first, Ok(())),
            (Some(first), true, true, first, Ok(())),
            (Some(first), true, false, stranger, Err(Refused::Keeps)),
            (Some(first), true, true, stranger, Err(Refused::Taken)),
            (Some(first), false, true, stranger, Err(Refused::Taken)),
            (Some(first), false, false, stranger, Ok(())),
            // A promoted one takes the place of its primary, connected or not.
            (Some(first), true, true, promoted, Ok(())),
            (Some(first), true, false, later, Ok(())),
            (Some(promoted), true, false, first, Err(Refused::Superseded)),
            (Some(promoted), false, false, first, Err(Refused::Superseded)),
            (Some(later), false, true, promoted, Err(Refused::Superseded)),
            // Two were promoted: neither is newer.
            (Some(promoted), true, false, twin, Err(Refused::Keeps)),
            (Some(promoted), true, true, twin, Err(Refused::Taken)),
        ] {
            let decided = decide(has, is_complete, is_connected, offered);
            assert_eq!(decided, expected, "{has:?} {is_complete} {is_connected} {offered:?}");
        }
    }
}
