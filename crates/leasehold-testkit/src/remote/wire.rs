//! The encoding of calls and answers: numbers in eight bytes, texts and lists after their length.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Mutex;
use std::time::Duration;

use leasehold::cells::rate::{Algorithm, Limit, Taken};
use leasehold::cells::store::{Kept, Key, Kind, When, Write, Written};
use leasehold::{
    Acquired, Busy, Capabilities, Claim, Converted, Deadline, Error, Evicted, Fence, Grant, Holder, Loss,
    Name, Names, Nodes, Owner, Permits, Released, Renewed, Result, Share, Status, Ticket, Token, Ttl, Wait,
    Waiter,
};

use crate::origin;

/// Returns the value as the other process receives it.
pub fn crossed<T: Wire>(value: &T) -> T {
    let mut bytes = Vec::new();
    value.put(&mut bytes);
    T::take(&mut &bytes[..])
}

/// A value that can cross. Both ends are the same program, so invalid bytes are a bug and a panic.
pub trait Wire: Sized {
    fn put(&self, out: &mut Vec<u8>);
    fn take(from: &mut &[u8]) -> Self;
}

impl Wire for u64 {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend(self.to_le_bytes());
    }

    fn take(from: &mut &[u8]) -> Self {
        u64::from_le_bytes(*from.split_off(..8).unwrap().first_chunk().unwrap())
    }
}

impl Wire for String {
    fn put(&self, out: &mut Vec<u8>) {
        self.len().put(out);
        out.extend(self.as_bytes());
    }

    fn take(from: &mut &[u8]) -> Self {
        let length = usize::take(from);
        String::from_utf8(from.split_off(..length).unwrap().to_vec()).unwrap()
    }
}

impl<A: Wire, B: Wire> Wire for (A, B) {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
        self.1.put(out);
    }

    fn take(from: &mut &[u8]) -> Self {
        (A::take(from), B::take(from))
    }
}

impl<T: Wire> Wire for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.len().put(out);
        self.iter().for_each(|item| item.put(out));
    }

    fn take(from: &mut &[u8]) -> Self {
        (0..usize::take(from)).map(|_| T::take(from)).collect()
    }
}

/// Types that cross as a simpler type.
macro_rules! crosses_as {
    ($($type:ty, $simpler:ty, $there:expr, $back:expr;)*) => { $(
        impl Wire for $type {
            fn put(&self, out: &mut Vec<u8>) {
                let there: fn(&$type) -> $simpler = $there;
                there(self).put(out);
            }

            fn take(from: &mut &[u8]) -> Self {
                let back: fn($simpler) -> $type = $back;
                back(Wire::take(from))
            }
        }
    )* };
}

crosses_as! {
    bool, u64, |it| u64::from(*it), |number| number == 1;
    u8, u64, |it| u64::from(*it), |number| number.try_into().unwrap();
    i64, u64, |it| *it as u64, |number| number as i64;
    u16, u64, |it| u64::from(*it), |number| number.try_into().unwrap();
    u32, u64, |it| u64::from(*it), |number| number.try_into().unwrap();
    usize, u64, |it| *it as u64, |number| number.try_into().unwrap();
    &'static str, String, |it| it.to_string(), kept;
    Duration, (u64, u32), |it| (it.as_secs(), it.subsec_nanos()), |(secs, nanos)| Duration::new(secs, nanos);
    Deadline, Duration, |it| it.since(origin()), |since| origin().plus(since);
    Fence, u64, |it| it.get(), |number| Fence::new(number).unwrap();
    Ttl, Duration, |it| it.as_duration(), |duration| Ttl::new(duration).unwrap();
    Name, String, |it| it.as_str().to_owned(), |text| Name::new(text).unwrap();
    Key, (Kind, Name), |it| (it.kind(), it.name().clone()), |(kind, name)| Key::new(kind, name);
    Limit, (Algorithm, (u32, Duration)), |it| (it.algorithm(), (it.max(), it.period())), |(algorithm, (max, period))| {
        Limit::new(algorithm, max, period).unwrap()
    };
    Names, Vec<Name>, |it| it.as_slice().to_vec(), |names| Names::new(names).unwrap();
    Owner, String, |it| it.as_str().to_owned(), |text| Owner::new(text).unwrap();
    Token, String, |it| it.expose().to_owned(), |text| Token::parse(&text).unwrap();
    Permits, (bool, (u32, u32)), |it| (it.is_barging(), (it.take(), it.limit())), |(barging, (take, limit))| {
        let permits = Permits::new(take, limit).unwrap();
        if barging { permits.barging() } else { permits }
    };
    Capabilities, (&'static str, (Duration, Vec<bool>)), |can| {
        let mut can = can.clone();
        let flags = flags(&mut can).map(|flag| *flag).to_vec();
        (can.store, (can.late_window, flags))
    }, |(store, (late_window, said))| {
        let mut can = Capabilities::none(store);
        can.late_window = late_window;
        flags(&mut can).into_iter().zip(said).for_each(|(flag, said)| *flag = said);
        can
    };
}

fn flags(can: &mut Capabilities) -> [&mut bool; 9] {
    let Capabilities { fenced, fence_blocks, fair, shared, permits, .. } = can;
    let Capabilities { several_names, conversions, pushed, cells, .. } = can;
    [fenced, fence_blocks, fair, shared, permits, several_names, conversions, pushed, cells]
}

/// Leaks each text once.
fn kept(text: String) -> &'static str {
    static KEPT: Mutex<BTreeSet<&str>> = Mutex::new(BTreeSet::new());
    let mut kept = KEPT.lock().unwrap();
    if let Some(same) = kept.get(text.as_str()) {
        return same;
    }
    let text = text.leak();
    kept.insert(text);
    text
}

/// Types that cross field by field, and enums by the variant's name.
macro_rules! crosses {
    ($(struct $type:ident { $($field:ident),* })*) => { $(
        impl Wire for $type {
            fn put(&self, out: &mut Vec<u8>) {
                $(self.$field.put(out);)*
            }

            fn take(from: &mut &[u8]) -> Self {
                $type { $($field: Wire::take(from)),* }
            }
        }
    )* };
    ($(enum $type:ident $(<$of:ident>)? { $($variant:ident { $($field:tt: $value:ident),* })* })*) => { $(
        impl$(<$of: Wire + fmt::Debug>)? Wire for $type$(<$of>)? {
            #[allow(unreachable_patterns)]
            fn put(&self, out: &mut Vec<u8>) {
                match self {
                    $($type::$variant { $($field: $value),* } => {
                        stringify!($variant).put(out);
                        $($value.put(out);)*
                    })*
                    other => panic!("{other:?} cannot cross"),
                }
            }

            fn take(from: &mut &[u8]) -> Self {
                let variant = String::take(from);
                $(if variant == stringify!($variant) {
                    return $type::$variant { $($field: Wire::take(from)),* };
                })*
                panic!("{variant} is no {}", stringify!($type));
            }
        }
    )* };
}

crosses! {
    enum Option<T> { None {} Some { 0: a } }
    enum Result<T> { Ok { 0: a } Err { 0: a } }
    enum Share { Exclusive {} Shared {} Permits { 0: a } }
    enum Wait { Never {} Until { 0: a } Forever {} }
    enum Acquired { Granted { 0: a } Busy { 0: a } }
    enum Renewed { Until { 0: a } Lost { 0: a } }
    enum Kind { Cell {} Counter {} Latch {} Rate {} }
    enum Algorithm { FixedWindow {} SlidingWindow {} Gcra { burst: a } }
    enum When { Always {} Absent {} Is { 0: a } Fenced { fence: a, kept_for: b } }
    enum Written { Written {} Not {} Stale { 0: a } }
    enum Released { Released {} NotHeld {} }
    enum Converted { Converted { 0: a } Refused {} NotHeld {} }
    enum Loss { Expired {} Taken {} Deleted {} Unreachable {} HoldLimit {} Clock {} Closed {} Released {} }
    enum Error {
        Busy { names: a, busy: b, waited: c } Lost { names: a, reason: b } Unreachable { store: a, why: b }
        Unknown { names: a, what: b, why: c } Late { names: a, left: b, needed: c } Refused { store: a, why: b }
        Unsupported { store: a, what: b, why: c } Invalid { what: a, given: b, why: c } Closed {}
        System { what: a, why: b } InsideRuntime {}
    }
}

crosses! {
    struct Claim { ticket, ttl, wait, fences, detached }
    struct Ticket { names, token, share, fence }
    struct Grant { fence, fences, valid_until }
    struct Busy { holder, remaining, waiters }
    struct Evicted { holders }
    struct Status { name, holders, waiters }
    struct Holder { owner, share, fence, remaining, nodes, held_for }
    struct Nodes { held, all, needed }
    struct Waiter { owner, share, waiting_for }
    struct Kept { value, remaining }
    struct Write { when, value, ttl }
    struct Taken { allowed, remaining, retry_after, reset_after }
}
