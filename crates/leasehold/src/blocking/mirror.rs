//! `mirror!`: the declaration of a blocking type by the methods of its async type.

use std::sync::Arc;

use super::engine::Engine;

/// Declares blocking types, with the methods that only call the async method of the same name.
///
/// ```text
/// mirror! {
///     /// A lock that one holder at a time has.
///     #[derive(Clone)]
///     struct Mutex(crate::Mutex) {
///         /// Waits for the lock and acquires it.
///         async fn lock(&self) -> Result<Lease>;
///         /// Returns the name.
///         fn name(&self) -> Name;
///     }
/// }
/// ```
///
/// A signature is that of the async method, but async types in the result (also in an `Option`)
/// become blocking types. An `async fn` blocks the calling thread, and fails with
/// `Error::InsideRuntime` inside a runtime. The docs of each method link to the async method.
/// `Debug` shows the async type. Methods that do more are written in an `impl` below the table.
macro_rules! mirror {
    (
        $(#[$attr:meta])*
        struct $name:ident $(<$t:ident $(= $default:ty)?>)? ($($path:ident)::+) { $($methods:tt)* }
        $($rest:tt)*
    ) => {
        $(#[$attr])*
        pub struct $name $(<$t $(= $default)?>)? {
            // `inner` is dropped first: the engine stops with its last user, and runs what the drop
            // of `inner` leaves to the background.
            pub(crate) inner: $($path)::+ $(<$t>)?,
            engine: ::std::sync::Arc<$crate::blocking::engine::Engine>,
        }

        impl $(<$t>)? $crate::blocking::mirror::FromAsync<$($path)::+ $(<$t>)?> for $name $(<$t>)? {
            fn from_async(
                inner: $($path)::+ $(<$t>)?,
                engine: &::std::sync::Arc<$crate::blocking::engine::Engine>,
            ) -> Self {
                $name { inner, engine: engine.clone() }
            }
        }

        impl $(<$t>)? $crate::blocking::mirror::FromAsync<Option<$($path)::+ $(<$t>)?>>
            for Option<$name $(<$t>)?>
        {
            fn from_async(
                inner: Option<$($path)::+ $(<$t>)?>,
                engine: &::std::sync::Arc<$crate::blocking::engine::Engine>,
            ) -> Self {
                inner.map(|inner| $name { inner, engine: engine.clone() })
            }
        }

        impl $(<$t>)? ::std::fmt::Debug for $name $(<$t>)? {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                self.inner.fmt(f)
            }
        }

        impl $(<$t>)? $name $(<$t>)? {
            $crate::blocking::mirror::mirror_methods! { [$($path)::+] $($methods)* }
        }

        $crate::blocking::mirror::mirror! { $($rest)* }
    };
    () => {};
}
pub(super) use mirror;

/// Declares the methods of one table of [`mirror!`], one after the other.
macro_rules! mirror_methods {
    (
        [$($path:ident)::+]
        $(#[$attr:meta])*
        async fn $name:ident($($args:tt)*) -> Result<$out:ty>;
        $($rest:tt)*
    ) => {
        $(#[$attr])*
        #[doc = concat!("\n\nSee [`", $(stringify!($path), "::",)+ stringify!($name), "`].")]
        pub fn $name($($args)*) -> Result<$out> {
            $crate::blocking::mirror::call_async!(block_on $name($($args)*))
        }

        $crate::blocking::mirror::mirror_methods! { [$($path)::+] $($rest)* }
    };
    (
        [$($path:ident)::+]
        $(#[$attr:meta])*
        fn $name:ident($($args:tt)*) -> $out:ty;
        $($rest:tt)*
    ) => {
        $(#[$attr])*
        #[doc = concat!("\n\nSee [`", $(stringify!($path), "::",)+ stringify!($name), "`].")]
        pub fn $name($($args)*) -> $out {
            $crate::blocking::mirror::call_async!(at_once $name($($args)*))
        }

        $crate::blocking::mirror::mirror_methods! { [$($path)::+] $($rest)* }
    };
    ([$($path:ident)::+]) => {};
}
pub(super) use mirror_methods;

/// Calls the async method with the same arguments.
macro_rules! call_async {
    ($how:ident $name:ident(&mut $($args:tt)*)) => {
        $crate::blocking::mirror::call_async!($how $name($($args)*))
    };
    (block_on $name:ident($(&)? $self:ident $(, $arg:ident: $type:ty)*)) => {{
        let answer = $self.engine.block_on($self.inner.$name($($arg),*))??;
        Ok($crate::blocking::mirror::FromAsync::from_async(answer, &$self.engine))
    }};
    (at_once $name:ident($(&)? $self:ident $(, $arg:ident: $type:ty)*)) => {
        $crate::blocking::mirror::FromAsync::from_async($self.inner.$name($($arg),*), &$self.engine)
    };
}
pub(super) use call_async;

/// Converts the result of an async method: an async type gets its engine, any other type stays.
pub(super) trait FromAsync<A> {
    fn from_async(answer: A, engine: &Arc<Engine>) -> Self;
}

impl<T> FromAsync<T> for T {
    fn from_async(answer: T, _: &Arc<Engine>) -> T {
        answer
    }
}
