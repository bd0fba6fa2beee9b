/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The listeners (abi/tidegate.h), made from what the hash has: written from the
 * description in the ABI, not from the loader.
 */

/* Of one entry of the hash; an address that is all zero is any. */
static struct tg_listener host_listener(const struct tg_listen_key *key,
				const struct tg_listen *listen)
{
	struct tg_listener listener = { .listen = *listen };
	int mapped = key->addr[2] == bpf_htonl(0xffff);

	memcpy(listener.addr, key->addr, sizeof(listener.addr));
	if (!key->addr[0] && !key->addr[1] && !key->addr[3] &&
	    (mapped || !key->addr[2]))
		listener.any = mapped ? TG_LISTENER_IPV4 : TG_LISTENER_IPV6;
	return listener;
}

/* The entries at a port, from this number on: with one address, or with any. */
static __u32 host_listeners_at(__u16 port, __u32 number, int any)
{
	const struct native_map *hash = native_map(&tg_listens);
	struct tg_listeners *all = native_entry(&tg_listeners, 0);

	for (__u32 i = 0; i < hash->used; i++) {
		const struct tg_listen_key *key = (void *)hash->keys;
		const struct tg_listen *listen = (void *)hash->values;
		struct tg_listener listener;

		listener = host_listener(&key[i], &listen[i]);
		if (key[i].port != port || !!listener.any != any)
			continue;
		if (number == TG_LISTENERS_MAX)
			abort();
		all->listener[number++] = listener;
	}
	return number;
}

/* Before a run. */
static void host_listeners(void)
{
	const struct native_map *hash = native_map(&tg_listens);
	struct tg_listeners *all = native_entry(&tg_listeners, 0);
	__u32 next = 1;

	memset(all->listener, 0, 64 * sizeof(all->listener[0]));
	for (__u32 i = 0; i < hash->used; i++)
		all->first[((struct tg_listen_key *)hash->keys)[i].port] = 0;
	for (__u32 i = 0; i < hash->used; i++) {
		__u16 port = ((struct tg_listen_key *)hash->keys)[i].port;
		__u32 end;

		if (all->first[port])
			continue;
		end = host_listeners_at(port, next, 0);
		end = host_listeners_at(port, end, 1);
		if (end - next > TG_LISTENERS_AT)
			continue;
		all->first[port] = next;
		for (; next < end; next++)
			all->listener[next].more = next + 1 < end;
	}
}
