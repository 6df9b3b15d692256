/* Settings that a chat can change while it runs. */
#ifndef LK_LOWKEY_CHAT_SETTINGS_H
#define LK_LOWKEY_CHAT_SETTINGS_H

struct chat;

/* "NAME VALUE" sets, "NAME" shows one setting, "" shows all. */
void chat_settings_run(struct chat *c, const char *args);

#endif
