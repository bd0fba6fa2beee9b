/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The doors (abi/tidegate.h), made from what the hash has: written from the
 * description in the ABI, not from the loader.
 */

/* Of one entry of the hash; an address that is all zero is any. */
static struct tg_door host_door(const struct tg_listen_key *key,
				const struct tg_listen *listen)
{
	struct tg_door door = { .listen = *listen };
	int mapped = key->addr[2] == bpf_htonl(0xffff);

	memcpy(door.addr, key->addr, sizeof(door.addr));
	if (!key->addr[0] && !key->addr[1] && !key->addr[3] &&
	    (mapped || !key->addr[2]))
		door.any = mapped ? TG_DOOR_IPV4 : TG_DOOR_IPV6;
	return door;
}

/* The entries at a port, from this number on: with one address, or with any. */
static __u32 host_doors_at(__u16 port, __u32 number, int any)
{
	const struct native_map *hash = native_map(&tg_listens);
	struct tg_doors *doors = native_entry(&tg_doors, 0);

	for (__u32 i = 0; i < hash->used; i++) {
		const struct tg_listen_key *key = (void *)hash->keys;
		const struct tg_listen *listen = (void *)hash->values;
		struct tg_door door = host_door(&key[i], &listen[i]);

		if (key[i].port != port || !!door.any != any)
			continue;
		if (number == TG_DOORS_MAX)
			abort();
		doors->door[number++] = door;
	}
	return number;
}

/* Before a run. */
static void host_doors(void)
{
	const struct native_map *hash = native_map(&tg_listens);
	struct tg_doors *doors = native_entry(&tg_doors, 0);
	__u32 next = 1;

	memset(doors->door, 0, 64 * sizeof(doors->door[0]));
	for (__u32 i = 0; i < hash->used; i++)
		doors->first[((struct tg_listen_key *)hash->keys)[i].port] = 0;
	for (__u32 i = 0; i < hash->used; i++) {
		__u16 port = ((struct tg_listen_key *)hash->keys)[i].port;
		__u32 end;

		if (doors->first[port])
			continue;
		end = host_doors_at(port, next, 0);
		end = host_doors_at(port, end, 1);
		if (end - next > TG_DOORS_AT)
			continue;
		doors->first[port] = next;
		for (; next < end; next++)
			doors->door[next].more = next + 1 < end;
	}
}
