//! Whose copy a backup has, and whose it takes instead.
//!
//! Owns the decision, which has no effect. A store begins empty in one process, and goes on in a
//! backup that is promoted with a complete copy of it. The processes that have had it are its
//! *line*. A store *follows* those of the processes before in its line: it has gone on where they
//! were copied, and they are out of date. Two that were promoted with the same copy have parted,
//! and so have all that follow one but not the other.
//!
//! | a primary comes | while the backup has | then |
//! |---|---|---|
//! | whose store the copy follows | a copy, complete or not | [`Refused::Superseded`] |
//! | whose store follows the copy | a copy, and its primary or none | welcome |
//! | again | its own copy | welcome |
//! | any other | another primary, connected | [`Refused::Taken`] |
//! | any other | a complete copy | [`Refused::Keeps`]: it may be all that is left of that store |
//! | any other | no copy, or an incomplete one | welcome |
//!
//! A line has the last [`LINE`] processes. A store that is further behind counts as any other.
//!
//! All of this is in memory: a backup that is started anew has nothing, and takes any primary.

/// Processes in a line.
pub const LINE: usize = 8;

/// Whose store it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    /// The process that has it, and those that had it before, the last one first; zeros before the
    /// beginning. The numbers differ from process to process, and from start to start.
    pub line: [u64; LINE],
}

/// Why a primary is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// Another one is connected.
    Taken,
    /// The copy follows its store.
    Superseded,
    /// The copy of another store is complete.
    Keeps,
}

impl Origin {
    /// A store that begins empty.
    pub fn begin(primary: u64) -> Self {
        let mut line = [0; LINE];
        line[0] = primary;
        Self { line }
    }

    /// The same store in a process that was promoted.
    pub fn promoted(self, primary: u64) -> Self {
        let mut line = self.line;
        line.rotate_right(1);
        line[0] = primary;
        Self { line }
    }

    /// Returns true if this store has gone on where a copy of `other` ended.
    fn follows(self, other: Self) -> bool {
        self.line[1..].contains(&other.line[0])
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
    if has.follows(offered) {
        Err(Refused::Superseded)
    } else if offered.follows(has) || has == offered {
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
            // What follows one of them does not follow the other.
            (Some(twin), true, false, later, Err(Refused::Keeps)),
            (Some(twin), true, true, later, Err(Refused::Taken)),
            (Some(twin), false, false, later, Ok(())),
            (Some(later), true, false, twin, Err(Refused::Keeps)),
            (Some(first), true, true, (10..16).fold(promoted, Origin::promoted), Ok(())),
            (Some(first), true, false, (10..17).fold(promoted, Origin::promoted), Err(Refused::Keeps)),
        ] {
            let decided = decide(has, is_complete, is_connected, offered);
            assert_eq!(decided, expected, "{has:?} {is_complete} {is_connected} {offered:?}");
        }
    }
}
