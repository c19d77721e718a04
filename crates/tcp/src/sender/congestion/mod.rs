//! Congestion control: how large the window is, grown by what is delivered and cut by what is lost or marked.

/// Which congestion control a connection uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Algorithm {
    /// RFC 5681 and RFC 6582.
    NewReno,
    /// RFC 9438, with HyStart++ (RFC 9406). The default.
    #[default]
    Cubic,
    /// RFC 8257: needs ECN from end to end and switches that mark; inside data centres only.
    Dctcp,
}
