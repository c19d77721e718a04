//! Tables of bounds on time.
//!
//! Owns [`bounds`], which declares such a table: a structure whose fields have their reasons and
//! their values beside them, and which is made in cycles once the clock of the machine is known.

/// Declares a structure of times with their values, in `ns`, `us` or `ms`.
macro_rules! bounds {
    ($(#[$meta:meta])* $vis:vis struct $name:ident {
        $($(#[$doc:meta])* $field:ident = $value:literal $unit:ident,)*
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy)]
        $vis struct $name {
            $($(#[$doc])* $vis $field: tailwater_shm::Cycles,)*
        }

        impl $name {
            /// Returns the table in cycles of this clock.
            $vis fn new(clock: tailwater_shm::Clock) -> Self {
                Self { $($field: clock.from_ns(crate::bounds::bounds!(@ $value $unit)),)* }
            }
        }
    };
    (@ $value:literal ns) => { $value };
    (@ $value:literal us) => { $value * 1_000 };
    (@ $value:literal ms) => { $value * 1_000_000 };
}

pub(crate) use bounds;
