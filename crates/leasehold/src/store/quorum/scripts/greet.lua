-- What a client says first on each new connection, and again when it knows the time: from then on a node that forgot is counted
-- as such.
--
-- KEYS: MEMORY
-- Reply: time age

return { NOW, (remembered('')) }
