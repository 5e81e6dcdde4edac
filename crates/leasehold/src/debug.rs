//! `Debug` of types that show some of their parts.

/// Implements `Debug`: shows these fields and methods, and `..` for the rest.
macro_rules! debug_parts {
    ($type:ident: $($part:ident $(($($no_args:tt)*))?)*) => {
        impl ::std::fmt::Debug for $type {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.debug_struct(stringify!($type))
                    $(.field(stringify!($part), &self.$part $(($($no_args)*))?))*
                    .finish_non_exhaustive()
            }
        }
    };
}
pub(crate) use debug_parts;
