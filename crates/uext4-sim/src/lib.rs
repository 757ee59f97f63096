//! Test kit of uext4: generated loads, recorded runs, crash states.
