//! Atomics of which every access is a point. Orderings are those of the system's types, though
//! threads that run one after the other never see a weak one.

use crate::scheduler::point;
use std::sync::atomic as system;
pub use system::Ordering;

/// A fence is a point.
#[track_caller]
pub fn fence(order: Ordering) {
    point();
    system::fence(order);
}

macro_rules! atomic {
    ($name:ident, $value:ty $(, $($method:ident),+)?) => {
        #[doc = concat!("`", stringify!($name), "` with points.")]
        #[derive(Debug, Default)]
        pub struct $name(system::$name);

        #[allow(missing_docs)] // those of the standard library
        impl $name {
            #[must_use]
            pub const fn new(value: $value) -> Self {
                Self(system::$name::new(value))
            }

            #[inline]
            #[track_caller]
            pub fn load(&self, order: Ordering) -> $value {
                point();
                self.0.load(order)
            }

            #[inline]
            #[track_caller]
            pub fn store(&self, value: $value, order: Ordering) {
                point();
                self.0.store(value, order);
            }

            #[inline]
            #[track_caller]
            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                point();
                self.0.swap(value, order)
            }

            #[inline]
            #[track_caller]
            pub fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                point();
                self.0.compare_exchange(current, new, success, failure)
            }

            /// Never fails spuriously.
            #[inline]
            #[track_caller]
            pub fn compare_exchange_weak(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.compare_exchange(current, new, success, failure)
            }

            #[inline]
            #[track_caller]
            pub fn fetch_update(
                &self,
                set: Ordering,
                fetch: Ordering,
                change: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                point();
                self.0.fetch_update(set, fetch, change)
            }

            pub fn get_mut(&mut self) -> &mut $value {
                self.0.get_mut()
            }

            $($(
                #[inline]
                #[track_caller]
                pub fn $method(&self, value: $value, order: Ordering) -> $value {
                    point();
                    self.0.$method(value, order)
                }
            )+)?
        }
    };
}

macro_rules! atomic_number {
    ($($name:ident, $value:ty);+) => {$(
        atomic!(
            $name, $value, fetch_add, fetch_sub, fetch_and, fetch_or, fetch_xor, fetch_max,
            fetch_min
        );
    )+};
}

atomic!(AtomicBool, bool, fetch_and, fetch_or, fetch_xor);
atomic_number!(AtomicU8, u8; AtomicU32, u32; AtomicU64, u64; AtomicUsize, usize; AtomicI64, i64);
