//! Maps of an eBPF program that this process fills and reads.
//!
//! Owns the sizes: a map is made for one type of keys and one of values, so that no request names
//! memory of another length.

use core::ffi::c_int;
use core::marker::PhantomData;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;

use super::{Element, MAP_UPDATE_ELEM, bpf, make_map};

const MAP_LOOKUP_ELEM: c_int = 1;
const MAP_DELETE_ELEM: c_int = 3;
const MAP_GET_NEXT_KEY: c_int = 4;
const MAP_TYPE_HASH: u32 = 1;
const MAP_TYPE_ARRAY: u32 = 2;
const MAP_TYPE_LRU_HASH: u32 = 9;
/// `BPF_F_MMAPABLE`, whose effect here is that the first value begins at a page.
const FROM_PAGE: u32 = 1 << 10;

/// Plain integers.
///
/// # Safety
/// 1. Every pattern of bits is a value of the type.
/// 2. The type has no padding.
pub unsafe trait Plain: Copy + Default {}

// SAFETY: 1 and 2: an integer.
unsafe impl Plain for u32 {}
// SAFETY: 1 and 2: an integer.
unsafe impl Plain for u64 {}
// SAFETY: 1 and 2: integers of the same size, one behind the other.
unsafe impl<const N: usize> Plain for [u64; N] where [u64; N]: Default {}

/// A map from `K` to `V`.
#[derive(Debug)]
pub struct Map<K, V> {
    map: OwnedFd,
    types: PhantomData<(K, V)>,
}

impl<V: Plain> Map<u32, V> {
    /// Returns an array of `entries` values, all 0, that begins at a page of memory.
    ///
    /// # Errors
    /// The kernel's error; [`Errno::PERM`] without `CAP_BPF`.
    pub fn array(entries: u32) -> Result<Self, Errno> {
        Self::make(MAP_TYPE_ARRAY, entries, FROM_PAGE)
    }
}

impl<K: Plain, V: Plain> Map<K, V> {
    /// Returns an empty hash table for at most `entries` keys, whose memory is taken now.
    ///
    /// # Errors
    /// The kernel's error; [`Errno::PERM`] without `CAP_BPF`.
    pub fn hash(entries: u32) -> Result<Self, Errno> {
        Self::make(MAP_TYPE_HASH, entries, 0)
    }

    /// Returns an empty hash table for at most `entries` keys, in which a new key takes the place
    /// of one that was not used for long.
    ///
    /// # Errors
    /// The kernel's error; [`Errno::PERM`] without `CAP_BPF`.
    pub fn recent(entries: u32) -> Result<Self, Errno> {
        Self::make(MAP_TYPE_LRU_HASH, entries, 0)
    }

    fn make(map_type: u32, entries: u32, flags: u32) -> Result<Self, Errno> {
        let map = make_map(map_type, size_of::<K>(), size_of::<V>(), entries, flags)?;
        Ok(Self { map, types: PhantomData })
    }

    /// Returns the map that another process has made with this descriptor.
    ///
    /// # Errors
    /// [`Errno::INVAL`] if its keys or values have other sizes, or the kernel's error.
    pub fn adopt(map: OwnedFd) -> Result<Self, Errno> {
        // `struct bpf_map_info` begins with type, number, and sizes of key and value.
        let [_, _, key_size, value_size, ..] = super::info(&map)?;
        // The kernel reads and writes as many bytes as the map has, whatever the types here are.
        let fits = (key_size as usize, value_size as usize) == (size_of::<K>(), size_of::<V>());
        if fits { Ok(Self { map, types: PhantomData }) } else { Err(Errno::INVAL) }
    }

    /// Returns the number that a program names the map by.
    pub fn number(&self) -> i32 {
        self.map.as_raw_fd()
    }

    /// Sets the value of a key.
    ///
    /// # Errors
    /// The kernel's error: the map is full.
    pub fn set(&self, key: K, value: V) -> Result<(), Errno> {
        bpf(MAP_UPDATE_ELEM, &mut Element::new(&self.map, &raw const key, &raw const value)).map(drop)
    }

    /// Removes a key, if the map has it.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn remove(&self, key: K) -> Result<(), Errno> {
        let none = core::ptr::null::<V>();
        match bpf(MAP_DELETE_ELEM, &mut Element::new(&self.map, &raw const key, none)) {
            Ok(_) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Returns the value of a key; `None` if the map has no such key.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn get(&self, key: K) -> Result<Option<V>, Errno> {
        let mut value = V::default();
        match bpf(MAP_LOOKUP_ELEM, &mut Element::new(&self.map, &raw const key, &raw mut value)) {
            Ok(_) => Ok(Some(value)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns at most `limit` keys and their values. Of a map in which no key is removed, each key
    /// once.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn entries(&self, limit: usize) -> Result<Vec<(K, V)>, Errno> {
        let (mut entries, mut last) = (Vec::new(), None::<K>);
        while entries.len() < limit {
            let mut next = K::default();
            let key = last.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
            match bpf(MAP_GET_NEXT_KEY, &mut Element::new(&self.map, key, &raw mut next)) {
                Ok(_) => {}
                Err(Errno::NOENT) => break,
                Err(error) => return Err(error),
            }
            if let Some(value) = self.get(next)? {
                entries.push((next, value));
            }
            last = Some(next);
        }
        Ok(entries)
    }
}

impl<K, V> AsFd for Map<K, V> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_set_is_found_and_nothing_else() {
        let map = match Map::<u64, [u64; 2]>::hash(4) {
            Ok(map) => map,
            Err(error @ (Errno::PERM | Errno::NOSYS)) => {
                return eprintln!("skipped: no eBPF map can be made here ({error})");
            }
            Err(error) => panic!("{error}"),
        };
        assert_eq!(map.entries(9).unwrap(), []);
        map.set(7, [1, 2]).unwrap();
        map.set(9, [3, 4]).unwrap();
        map.set(7, [5, 6]).unwrap();
        assert_eq!((map.get(7), map.get(8)), (Ok(Some([5, 6])), Ok(None)));
        let mut all = map.entries(9).unwrap();
        all.sort_unstable();
        assert_eq!(all, [(7, [5, 6]), (9, [3, 4])]);
        assert_eq!(map.entries(1).unwrap().len(), 1);
        assert_eq!((map.remove(9), map.remove(8)), (Ok(()), Ok(())));
        assert_eq!(map.entries(9).unwrap(), [(7, [5, 6])]);
        let same = map.as_fd().try_clone_to_owned().unwrap();
        assert_eq!(Map::<u64, [u64; 2]>::adopt(same).unwrap().get(7), Ok(Some([5, 6])));
        let other = map.as_fd().try_clone_to_owned().unwrap();
        assert_eq!(Map::<u64, u64>::adopt(other).err(), Some(Errno::INVAL), "values of another size");
    }

    #[test]
    fn a_full_table_of_recent_keys_takes_a_new_one() {
        let map = match Map::<u64, u32>::recent(64) {
            Ok(map) => map,
            Err(error @ (Errno::PERM | Errno::NOSYS)) => {
                return eprintln!("skipped: no eBPF map can be made here ({error})");
            }
            Err(error) => panic!("{error}"),
        };
        for key in 0..1_000 {
            map.set(key, 1).unwrap();
            assert_eq!(map.get(key), Ok(Some(1)), "{key}");
        }
        assert!(map.entries(1_000).unwrap().len() <= 64);
    }
}
